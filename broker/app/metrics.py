"""The broker's and its store's numbers for /metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric


class Numbers:
    """A Prometheus collector over plain numbers; names ending in `_total` are counters.

    `sources` maps a prefix (`holdmq_broker_`) to a function that is called on the admin
    thread: it reads plain attributes and never waits.
    """

    def __init__(self, sources: Mapping[str, Callable[[], Mapping[str, int | float]]]) -> None:
        self._sources = sources

    def collect(self) -> Iterator[Metric]:
        """One family per number."""
        for prefix, numbers in self._sources.items():
            for name, value in numbers().items():
                if name.endswith("_total"):
                    counter = CounterMetricFamily(
                        prefix + name.removesuffix("_total"), name.replace("_", " ")
                    )
                    counter.add_metric([], value)
                    yield counter
                else:
                    gauge = GaugeMetricFamily(prefix + name, name.replace("_", " "))
                    gauge.add_metric([], value)
                    yield gauge
