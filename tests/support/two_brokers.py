"""A registry and two brokers as real processes, for tests of what spreads over brokers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from processes import Stack, end_all


class Cluster:
    """`first` has the registry and broker-0, `second` broker-1."""

    def __init__(self, directory: Path, **overrides: Any) -> None:
        for name in ("first", "second"):
            (directory / name).mkdir()
        self.first = Stack(directory / "first", overrides)
        self.second = Stack(
            directory / "second",
            {"registry.port": self.first.registry_port, "broker.name": "broker-1", **overrides},
        )
        self.registries = [self.first.registry]

    def stack_of(self, broker: str) -> Stack:
        """The stack that a broker runs in."""
        return self.first if broker == "broker-0" else self.second


def two_brokers(directory: Path, **overrides: Any) -> Iterator[Cluster]:
    """Start a cluster; end it when the generator is closed."""
    cluster = Cluster(directory, **overrides)
    try:
        cluster.first.start("registry", wait=False)
        cluster.first.start("broker", wait=False)
        cluster.second.start("broker", wait=False)
        cluster.first.wait_ready("registry")
        cluster.first.wait_ready("broker")
        cluster.second.wait_ready("broker")
        yield cluster
    finally:
        end_all([cluster.second, cluster.first])


def third_broker(cluster: Cluster, directory: Path) -> Iterator[Stack]:
    """A third broker of the cluster, which does not run yet; it is ended when the generator is closed."""
    (directory / "third").mkdir()
    stack = Stack(
        directory / "third", {"registry.port": cluster.first.registry_port, "broker.name": "broker-2"}
    )
    yield stack
    end_all([stack])
