"""Writes docs/configuration.md and docs/metrics.md from what the code declares: `make references`."""

from __future__ import annotations

import importlib
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import Metric

from broker.app.metric_help import BROKER, REPLICATION, STORE
from gateway.parent.metrics import Reports
from holdmq.cli.config import shown
from holdmq.config.sources import KeyInfo, reference, table_reference
from holdmq.coordination.counted import HELP as COORDINATION
from holdmq.rpc.auth import HELP as RPC
from holdmq.service.telemetry import METRICS
from registry.watching import HELP as REGISTRY_WATCH

ROOT: Final = Path(__file__).parent.parent.parent
WIDTH: Final = 100

CONFIGURATION: Final = """# Configuration

Every key, its default, type and range, its environment variable and what it means. One TOML file
(`--config FILE` or `HOLDMQ_CONFIG`) is read first, over it environment variables, over them
`--set section.key=value`. `holdmq config check` says whether a configuration would be accepted,
`holdmq config show` what is in force and where each value comes from.

Each key ends in *reload* or *restart*: what a running process takes over (`holdmq config reload`
or SIGHUP), and what counts from its next start on; see
[operating.md](operating.md#changing-settings-without-a-restart).

This page is written by `make references` from the configuration's model, and a test fails when it
is not what the model says.
"""

METRICS_PAGE: Final = """# Metrics

What `/metrics` of each process tells, in the Prometheus text format, on its admin port
(`<section>.admin_port`). Names are `holdmq_<area>_<what>_<unit>`; a counter ends in `_total`, and
labels have few values: never a client id, never a topic of a client's choice. What to watch of it
is in [operating.md](operating.md).

This page is written by `make references` from what the code declares, and a test fails when it is
not that.
"""

DECLARING: Final = (
    "console.app",
    "console.sql.box",
    "holdmq.service.admin",
    "holdmq.service.reloading",
    "registry.server",
    "spark_streaming.main",
    "spark_streaming.job.backlog",
    "spark_streaming.job.devices",
    "spark_streaming.job.query",
    "spark_streaming.job.tps",
)
"""Modules that declare metrics as they are imported, themselves or by what they import."""

AREAS: Final = {
    "holdmq_gateway_": ("Gateway", "Sums over its workers; of what each of them sees, the largest."),
    "holdmq_broker_": ("Broker", ""),
    "holdmq_replication_": ("Replication", "Of a broker with copies: of each replica."),
    "holdmq_coordination_": ("Coordination", "Of a broker with copies: what each asks its coordinator."),
    "holdmq_store_": ("Store", "Of each broker, too."),
    "holdmq_registry_": ("Registry", ""),
    "holdmq_rpc_": ("RPC", "Of registry and broker: who may connect."),
    "holdmq_stats_": ("Stats", "Of the Spark job's driver."),
    "holdmq_console_": ("Console", ""),
    "holdmq_": (
        "Every process",
        "And `process_…`: memory, CPU time and open files, as Prometheus names them.",
    ),
}
"""Title and a word by how a metric's name begins."""


class DeclaredMetric(NamedTuple):
    """A metric of some process."""

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str


def configuration_page() -> str:
    """Return docs/configuration.md."""
    parts = [CONFIGURATION]
    rows = [*reference(), *table_reference()]
    for section in dict.fromkeys(row.key.partition(".")[0] for row in rows):
        parts.append(f"\n## {section}\n\n")
        parts += [_key(row) for row in rows if row.key.partition(".")[0] == section]
    return "".join(parts)


def _key(row: KeyInfo) -> str:
    facts = [row.type, row.range, row.unit, f"`{row.env}`" if row.env else "", f"*{row.change}*"]
    head = f"**`{row.key}`** = `{shown(row.default)}`; {', '.join(filter(None, facts))}"
    return _item(head) + _wrapped(row.meaning, "  ", "  ")


def metrics_page() -> str:
    """Return docs/metrics.md."""
    declared = sorted(declared_metrics())
    parts = [METRICS_PAGE]
    for prefix, (title, word) in AREAS.items():
        longer = [area for area in AREAS if area != prefix and area.startswith(prefix)]
        of_area = [m for m in declared if m.name.startswith(prefix) and not m.name.startswith(tuple(longer))]
        parts.append(f"\n## {title}\n\n" + (f"{word}\n\n" if word else ""))
        parts += [_item(_metric(metric)) for metric in of_area]
    return "".join(parts)


def _metric(metric: DeclaredMetric) -> str:
    by = f" by {', '.join(f'`{label}`' for label in metric.labels)}" if metric.labels else ""
    return f"`{metric.name}` ({metric.kind}{by}): {metric.meaning}"


def declared_metrics() -> Iterator[DeclaredMetric]:
    """Every metric that a process of HoldMQ may tell."""
    for module in DECLARING:
        importlib.import_module(module)
    for collector in {id(one): one for one in METRICS._names_to_collectors.values()}.values():
        if isinstance(collector, MetricWrapperBase):
            yield from _of_families(collector.describe(), collector._labelnames)
    for family in Reports(1).families():
        yield from _of_families([family], getattr(family, "_labelnames", ()))
    for prefix, help_of in (
        ("holdmq_broker_", BROKER),
        ("holdmq_replication_", REPLICATION),
        ("holdmq_coordination_", COORDINATION),
        ("holdmq_store_", STORE),
        ("holdmq_registry_", REGISTRY_WATCH),
        ("holdmq_rpc_", RPC),
    ):
        yield from _of_numbers(prefix, help_of)


def _of_families(families: Iterable[Metric], labels: Iterable[str]) -> Iterator[DeclaredMetric]:
    for family in families:
        if family.name.startswith("holdmq_"):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            yield DeclaredMetric(name, family.type, tuple(labels), family.documentation)


def _of_numbers(prefix: str, help_of: Mapping[str, str]) -> Iterator[DeclaredMetric]:
    for name, meaning in help_of.items():
        kind = "counter" if name.endswith("_total") else "gauge"
        yield DeclaredMetric(prefix + name, kind, (), meaning)


def _item(text: str) -> str:
    return _wrapped(text, "- ", "  ")


def _wrapped(text: str, first: str, others: str) -> str:
    lines = textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=others,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return "\n".join(lines) + "\n"


PAGES: Final = {
    ROOT / "docs/configuration.md": configuration_page,
    ROOT / "docs/metrics.md": metrics_page,
}

if __name__ == "__main__":
    for path, page in PAGES.items():
        path.write_text(page(), encoding="utf-8")
