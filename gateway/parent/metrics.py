"""The numbers of all workers as one Prometheus text, and whether the gateway is ready."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.ground.counters import GAUGES, HELP

_MAXIMA = frozenset(
    (
        "loop_lag_ms_max",
        "brokers_known",
        "brokers_up",
        "draining",
        "overload_level",
        "bans",
        "fleet_bans",
        "fleet_quotas",
        "login_holds",
        "traces",
    )
)
"""What is the same thing seen by each worker: the largest is told, not the sum."""


class Reports:
    """The newest report of each worker, and what ended workers had counted.

    Totals of a worker that crashed stay in the sums: a counter must not fall.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.restarts = 0
        self.is_draining = False
        self._has_started = False
        self.silent: set[int] = set()
        """Workers that have not reported for long."""
        self._live: dict[int, dict[str, Any]] = {}
        self._ended: Counter[str] = Counter()
        self._ended_refused: Counter[str] = Counter()
        self._ended_listeners: dict[str, Counter[str]] = {}
        """Listener → what its connections in ended workers were refused for, "" = how many there were."""

    def received(self, index: int, report: dict[str, Any]) -> None:
        """A worker's report came."""
        self._has_started = True
        self._live[index] = report

    def ended(self, index: int) -> None:
        """A worker is gone."""
        report = self._live.pop(index, None)
        if report is not None:
            totals = {k: v for k, v in report["numbers"].items() if k not in GAUGES}
            self._ended.update(totals)
            self._ended_refused.update(report["refused"])
            for name, numbers in report.get("listeners", {}).items():
                counted = self._ended_listeners.setdefault(name, Counter())
                counted.update(numbers["refused"])
                counted[""] += numbers["accepted_total"]

    def start(self) -> tuple[bool, str]:
        """Return whether a worker has ever reported: whatever comes later, this gateway has started."""
        return self._has_started, "started" if self._has_started else "starting"

    def readiness(self) -> tuple[bool, str]:
        """Return whether clients can be served, and why not."""
        if self.is_draining:
            return False, "draining"
        reports = list(self._live.values())
        if not reports:
            return False, "starting"
        silent = sorted(self.silent)
        if silent:
            return False, f"worker {', '.join(map(str, silent))} does not answer"
        if not any(report["ready"] for report in reports):
            return False, "no worker is connected to every broker of the route"
        return True, "ready"

    def totals(self) -> dict[str, int]:
        """Every number of the gateway: of its workers, and of those that ended."""
        reports = list(self._live.values())
        totals: dict[str, int] = {}
        for name in HELP:
            values = [report["numbers"].get(name, 0) for report in reports]
            totals[name] = max(values, default=0) if name in _MAXIMA else sum(values)
            if name not in GAUGES:
                totals[name] += self._ended[name]
        return totals

    def families(self) -> Iterator[Metric]:
        """The gateway's metric families."""
        reports = list(self._live.values())
        for name, value in self.totals().items():
            if name in GAUGES:
                yield GaugeMetricFamily(f"holdmq_gateway_{name}", HELP[name], value=value)
            else:
                family = f"holdmq_gateway_{name.removesuffix('_total')}"
                yield CounterMetricFamily(family, HELP[name], value=value)
        refused = Counter(self._ended_refused)
        for report in reports:
            refused.update(report["refused"])
        by_reason = CounterMetricFamily(
            "holdmq_gateway_refused",
            "Connections, publishes and filters refused, by reason.",
            labels=["reason"],
        )
        for reason, count in sorted(refused.items()):
            by_reason.add_metric([reason], count)
        yield by_reason
        yield from self._listener_families(reports)
        by_worker = GaugeMetricFamily(
            "holdmq_gateway_worker_connections", "Connections open now, by worker.", labels=["worker"]
        )
        for index, report in sorted(self._live.copy().items()):
            by_worker.add_metric([str(index)], report["numbers"].get("connections", 0))
        yield by_worker
        memory = GaugeMetricFamily(
            "holdmq_gateway_worker_memory_bytes", "Resident memory, by worker.", labels=["worker"]
        )
        for index, report in sorted(self._live.copy().items()):
            memory.add_metric([str(index)], report["numbers"].get("memory_bytes", 0))
        yield memory
        yield GaugeMetricFamily("holdmq_gateway_workers", "Worker processes that report.", value=len(reports))
        yield CounterMetricFamily(
            "holdmq_gateway_worker_restarts", "Workers that ended by themselves.", value=self.restarts
        )

    def _listener_families(self, reports: list[dict[str, Any]]) -> Iterator[Metric]:
        area = "holdmq_gateway_listener"
        connections = GaugeMetricFamily(
            f"{area}_connections", "Connections open now, by listener.", labels=["listener"]
        )
        accepted = CounterMetricFamily(
            f"{area}_accepted", "Connections that came, by listener.", labels=["listener"]
        )
        refused = CounterMetricFamily(
            f"{area}_refused",
            "Connections that the gateway ended, by listener and reason.",
            labels=["listener", "reason"],
        )
        expiry = GaugeMetricFamily(
            f"{area}_certificate_expiry_seconds",
            "When the certificate in use ends, by listener, in s since 1970; the earliest of all workers.",
            labels=["listener"],
        )
        by_name: dict[str, list[dict[str, Any]]] = {}
        for report in reports:
            for name, numbers in report.get("listeners", {}).items():
                by_name.setdefault(name, []).append(numbers)
        for name in sorted(by_name.keys() | self._ended_listeners.keys()):
            found = by_name.get(name, [])
            counted = Counter(self._ended_listeners.get(name, {}))
            for numbers in found:
                counted.update(numbers["refused"])
                counted[""] += numbers["accepted_total"]
            connections.add_metric([name], sum(numbers["connections"] for numbers in found))
            accepted.add_metric([name], counted.pop("", 0))
            for reason, count in sorted(counted.items()):
                refused.add_metric([name, reason], count)
            ends = [at for numbers in found if (at := numbers["certificate_expires_at"])]
            if ends:
                expiry.add_metric([name], min(ends))
        yield from (connections, accepted, refused, expiry)


class GatewayCollector(Collector):
    """Puts the workers' numbers into the process's registry."""

    def __init__(self, reports: Reports) -> None:
        self._reports = reports

    def collect(self) -> Iterator[Metric]:
        """The families, as prometheus-client asks for them."""
        return self._reports.families()
