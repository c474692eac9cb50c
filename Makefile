# `make up` runs HoldMQ on this machine, `make test` tests it. Both install what they need first.

VENV   := .venv
PY     := $(VENV)/bin/python
SOURCE := gateway broker storage registry pyspark_holdmq spark_streaming loadtest console holdmq
CODE   := $(shell find $(SOURCE) -name '*.py')
# `make up COMPILE=0` runs from the sources as they are; tests always do.
COMPILE ?= 1
ARGS   ?=
# Processes that run tests, a module at a time, the longest first: many of them wait for what they started.
TESTERS ?= 4

# A service starts in half the time when its modules are compiled to bytecode already, whatever the environment wants.
export PYTHONDONTWRITEBYTECODE :=

LOCKS := $(wildcard requirements/*.txt requirements/node/*.json requirements/etcd/go.*)

.PHONY: setup up check test test-system test-compiled test-kv test-kv-core test-state simulation bench compile conformance references chart lock clean
.DEFAULT_GOAL := up

.make/up: pyproject.toml .ci/setup $(LOCKS)
	.ci/setup up
	@mkdir -p $(@D) && touch $@

.make/test: pyproject.toml .ci/setup .make/up $(LOCKS)
	.ci/setup test
	@mkdir -p $(@D) && touch $@

.make/bench: pyproject.toml .ci/setup .make/test $(LOCKS)
	.ci/setup bench
	@mkdir -p $(@D) && touch $@

setup: .make/test

# A copy of the packages with the modules of pyproject.toml's mypyc hook translated to C.
build/compiled: pyproject.toml .ci/setup .make/up $(CODE)
	.ci/setup compile
	@[ ! -d $@ ] || touch $@

# In front of a command: it runs what was compiled. Python looks into the directory that it is called in first, where
# the sources are, unless it is told not to.
COMPILED = $(if $(filter 1,$(COMPILE)),$(if $(wildcard build/compiled),PYTHONSAFEPATH=1 PYTHONPATH=$(CURDIR)/build/compiled))

# Other data or ports: make up ARGS="--data /var/lib/holdmq --set gateway.port=1884"
up: .make/up $(if $(filter 1,$(COMPILE)),build/compiled)
	@$(COMPILED) exec $(VENV)/bin/python -m holdmq.cli up $(ARGS)

# Compiling is a check as well: what mypyc refuses, or takes and gcc does not, would stop `make up`.
check: .make/test $(if $(filter 1,$(COMPILE)),build/compiled)
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(VENV)/bin/bandit --quiet --configfile pyproject.toml --recursive $(SOURCE)
	$(PY) -m pytest --quiet tests/packaging/test_lock.py
	$(PY) .ci/words.py
	$(PY) .ci/circles.py
	@find $(SOURCE) tests -name '*.py' -exec awk 'FNR == 801 { print FILENAME ": more than 800 lines"; \
		found = 1 } END { exit found }' {} +

# Three runs. `test` takes pure cores and the shells around them, two minutes; `test-system` what starts whole
# services, browsers or Spark, kills processes, or crashes a disk at each step. SYSTEM in tests/conftest.py is the
# one list that says which is which; each test is in exactly one of the two.
PYTEST := $(PY) -m pytest --dist loadfile --no-loadscope-reorder --durations=25

test: .make/test
	$(PYTEST) -n $(TESTERS) -m "not system" $(ARGS)

test-system: .make/test
	$(PYTEST) -n $(TESTERS) -m system $(ARGS)

# The third: what ships is what is tested. Tests of modules that mypyc compiles, on these modules as it compiled them
# (--compiled refuses to run otherwise), without those that change a module from outside (marked `interpreted`).
COMPILED_TESTS := tests/holdmq/mqtt tests/holdmq/record tests/holdmq/wire tests/gateway/ground tests/gateway/session \
	tests/gateway/publish tests/broker/produce/core tests/broker/reading tests/storage/core tests/storage/log/core \
	tests/storage/log/index/core tests/storage/log/timer/core

test-compiled: .make/test build/compiled
	PYTHONSAFEPATH=1 PYTHONPATH=$(CURDIR)/build/compiled \
		$(PYTEST) -n $(TESTERS) --compiled -m "not interpreted" $(COMPILED_TESTS) $(ARGS)

# The same tests with the other engine: all that start a broker get one over a real Valkey (ON_KV in
# tests/conftest.py). CI runs two minutes of them: QoS 0 to 2, sessions, retained messages, wills, groups of each
# mode, delays, dead letters, and Spark's source.
KV_CORE := $(addprefix tests/,integration/test_gateway.py integration/test_mqtt_behaviour.py \
	integration/test_retained.py integration/test_wills.py integration/test_groups_clustering.py \
	integration/test_groups_broadcast.py integration/test_shared.py integration/test_shares.py \
	integration/test_retry.py integration/test_tables.py gateway/persistent broker/retry broker/mqtt_shares \
	spark_streaming/source/test_reader.py spark_streaming/source/test_writer.py)

test-kv: .make/test
	$(PYTEST) -n $(TESTERS) --engine kv $(ARGS)

test-kv-core: .make/test
	$(PYTEST) -n $(TESTERS) --engine kv $(KV_CORE) $(ARGS)

# Replicas of a broker under every fault, by seed, on all cores; CI runs 240 seeds. 10,000 take an hour of two cores.
FIRST ?= 0
SEEDS ?= 1000
simulation: .make/test
	PYTHONPATH=tests/support:. $(PY) -m replica_runs $(FIRST) $$(( $(FIRST) + $(SEEDS) )) $(ARGS)

# The tests of the broker's rooms, whose state files are in their log: what copies of a log live on.
test-state: .make/test
	$(PYTEST) -n $(TESTERS) --state-in-log tests/broker $(ARGS)

bench: .make/bench $(if $(filter 1,$(COMPILE)),build/compiled)
	@for file in loadtest/bench/[a-z]*.py; do \
		name=$$(basename "$$file" .py); \
		echo "== $$name"; $(COMPILED) $(PY) -m "loadtest.bench.$$name" $(ARGS) || exit 1; \
	done

compile: build/compiled

# Writes the chart's README.md and values.schema.json from its values.yaml.
chart: .make/test
	$(PY) .ci/chart.py

# Writes docs/mqtt-conformance.md from the markers of the tests.
conformance: .make/test
	PYTHONPATH=tests/support $(PY) -m mqtt_conformance

# Writes docs/configuration.md and docs/metrics.md from what the code declares.
references: .make/test
	PYTHONPATH=tests/support:. $(PY) -m references

# Writes requirements/ from pyproject.toml. With the newest versions that it allows: make lock ARGS=--upgrade
lock: $(VENV)/bin/uv
	$(PY) .ci/lock.py $(ARGS)

$(VENV)/bin/uv:
	.ci/setup up
	.ci/setup test

clean:
	rm -rf build dist .make .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find $(SOURCE) tests -name __pycache__ -prune -exec rm -rf {} +
