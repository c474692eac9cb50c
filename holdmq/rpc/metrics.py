"""The numbers of a listener's security for /metrics."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from holdmq.rpc.auth import ServerSecurity


class SecurityCollector(Collector):
    """`holdmq_rpc_…`: what `ServerSecurity.numbers` says."""

    def __init__(self, security: ServerSecurity) -> None:
        self._security = security

    def collect(self) -> Iterator[Metric]:
        """One family per number."""
        for name, value in self._security.numbers().items():
            text = name.replace("_", " ")
            if name.endswith("_total"):
                counter = CounterMetricFamily(f"holdmq_rpc_{name.removesuffix('_total')}", text)
                counter.add_metric([], value)
                yield counter
            else:
                gauge = GaugeMetricFamily(f"holdmq_rpc_{name}", text)
                gauge.add_metric([], value)
                yield gauge
