# `make up` runs HoldMQ on this machine, `make test` tests it. Both install what they need first.

VENV   := .venv
PY     := $(VENV)/bin/python
SOURCE := gateway broker storage registry spark_streaming loadtest console holdmq
# What `make compile` translates to C, in place: the list of the wheel's mypyc hook in pyproject.toml.
HOT     = $(shell $(PY) -c "import tomllib; \
	build = tomllib.load(open('pyproject.toml', 'rb'))['tool']['hatch']['build']; \
	print(*(path.lstrip('/') for path in build['targets']['wheel']['hooks']['mypyc']['include']))")
ARGS   ?=

.PHONY: setup up check test bench compile clean
.DEFAULT_GOAL := up

.make/up: pyproject.toml .ci/setup
	.ci/setup up
	@mkdir -p $(@D) && touch $@

.make/test: pyproject.toml .ci/setup .make/up
	.ci/setup test
	@mkdir -p $(@D) && touch $@

setup: .make/test

# Other data or ports: make up ARGS="--data /var/lib/holdmq --set gateway.port=1884"
up: .make/up
	@exec $(VENV)/bin/holdmq up $(ARGS)

check: .make/test
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	@find $(SOURCE) tests -name '*.py' -exec awk 'FNR == 601 { print FILENAME ": more than 600 lines"; \
		found = 1 } END { exit found }' {} +

test: .make/test
	$(PY) -m pytest $(ARGS)

bench: .make/test
	@for file in loadtest/bench/[a-z]*.py; do \
		name=$$(basename "$$file" .py); \
		echo "== $$name"; $(PY) -m "loadtest.bench.$$name" $(ARGS) || exit 1; \
	done

compile: .make/test
	.ci/setup compile
	rm -rf build
	$(if $(HOT),$(VENV)/bin/mypyc $(HOT),@echo "the mypyc hook in pyproject.toml lists no modules")

clean:
	rm -rf build dist .make .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache *.so
	find $(SOURCE) tests \( -name __pycache__ -o -name '*.so' \) -prune -exec rm -rf {} +
