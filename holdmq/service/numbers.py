"""Plain numbers of a process for /metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class NumberSource(NamedTuple):
    """Numbers whose names begin with `prefix`; `read` is called on the admin thread and never waits."""

    prefix: str
    help: Mapping[str, str]
    read: Callable[[], Mapping[str, int | float]]


class Numbers(Collector):
    """Puts plain numbers into the process's registry; names that end in `_total` are counters."""

    def __init__(self, *sources: NumberSource) -> None:
        self._sources = sources

    def collect(self) -> Iterator[Metric]:
        """One family per number."""
        for prefix, help_of, read in self._sources:
            for name, value in read().items():
                meaning = help_of.get(name, name.replace("_", " "))
                if name.endswith("_total"):
                    yield CounterMetricFamily(prefix + name.removesuffix("_total"), meaning, value=value)
                else:
                    yield GaugeMetricFamily(prefix + name, meaning, value=value)
