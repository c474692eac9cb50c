"""The generated references, and that what processes tell is in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import Stack, free_port, running_stack
from prometheus_client.parser import text_string_to_metric_families
from references import PAGES, declared_metrics

from holdmq.config.sources import reference

PROCESSES = ("registry", "broker", "gateway", "console", "stats")
AREAS = "gateway|broker|replication|coordination|store|registry|rpc|stats|console|admin|log|build|config"
NAME = re.compile(rf"holdmq_({AREAS})_[a-z0-9_]+\Z")
BOUNDED_LABELS = {
    "box",  # kinds of queries
    "request",  # codes of the RPC
    "cause", "code", "kind", "reason", "result", "outcome", "state",  # lists in the code
    "listener", "worker",  # of the configuration
    "version", "python", "build",  # of what runs
    "query",  # of the job: two
    "le",  # of histograms
}  # fmt: skip


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    port = free_port()
    console = {"console.port": free_port(), "console.admin_port": port, "gateway.workers": 1}
    with running_stack(tmp_path_factory.mktemp("references"), **console) as running:
        running.admin_ports["console"] = port
        running.start("console", wait=False)
        running.start("stats", wait=False)
        for name in ("console", "stats"):
            running.wait_ready(name)
        yield running


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_page_is_what_the_generator_writes(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == PAGES[path](), "make references writes it"


def test_the_page_has_every_key() -> None:
    text = next(path for path in PAGES if path.name == "configuration.md").read_text(encoding="utf-8")
    for row in reference():
        assert f"**`{row.key}`**" in text
        assert f"`{row.env}`" in text
        assert row.meaning


def test_names_say_area_what_and_unit_and_each_is_declared_once() -> None:
    declared = list(declared_metrics())
    names = [metric.name for metric in declared]
    assert len(names) == len(set(names))
    for metric in declared:
        assert NAME.match(metric.name), metric.name
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert metric.meaning.endswith("."), metric
        assert set(metric.labels) <= BOUNDED_LABELS, metric


@pytest.mark.parametrize("name", PROCESSES)
def test_a_process_tells_that_it_lives_and_is_ready_and_only_metrics_of_the_page(
    name: str, stack: Stack
) -> None:
    for path in ("/startz", "/healthz", "/readyz"):
        assert stack.http(name, path)[0] == 200, path
    status, text = stack.http(name, "/metrics")
    assert status == 200
    declared = {metric.name: metric for metric in declared_metrics()}
    told = [family for family in text_string_to_metric_families(text) if family.name.startswith("holdmq_")]
    assert {"holdmq_build_info", "holdmq_log_lines_lost"} <= {family.name for family in told}
    for family in told:
        metric = declared[f"{family.name}_total" if family.type == "counter" else family.name]
        assert (family.type, family.documentation) == (metric.kind, metric.meaning)
        for sample in family.samples:
            assert set(sample.labels) <= {*metric.labels, "le"}


def _is_of_other_stores(name: str) -> bool:
    """Whether only a store of the key-value engine, or one with copies, tells it."""
    own = ("retention_bytes_total", "timer_scheduled_total")
    of_others = ("holdmq_store_kv_", "holdmq_store_replica_")
    return name.startswith(of_others) or name.removeprefix("holdmq_store_") in own


def test_the_broker_and_the_gateway_tell_all_that_is_declared_for_them(stack: Stack) -> None:
    for name, prefixes in (
        ("broker", ("holdmq_broker_", "holdmq_store_")),
        ("registry", ("holdmq_registry_",)),
    ):
        told = stack.http(name, "/metrics")[1]
        for metric in declared_metrics():
            if metric.name.startswith(prefixes) and not _is_of_other_stores(metric.name):
                assert f"# TYPE {metric.name} " in told, metric.name
