"""``holdmq cluster list | brokers``: which clusters and brokers are registered, and in which rooms."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from holdmq.cli.calls import run_calls
from holdmq.cli.options import Asking, CommandGroup
from holdmq.config.model import Config

if TYPE_CHECKING:
    from holdmq.client.admin import Admin

T = TypeVar("T")

app = CommandGroup("The clusters and brokers that a registry knows.", "holdmq cluster list")


@app.add("list", example="holdmq cluster list --json")
def list_(given: Asking) -> None:
    """List the clusters that have brokers at the registry, and their brokers."""
    view = _run(given.configuration(), lambda admin: admin.cluster())
    rows = [{"cluster": name, "brokers": brokers} for name, brokers in view.clusters().items()]
    given.table(("cluster", "brokers"), rows, lambda row: (row["cluster"], ", ".join(row["brokers"])))


@app.add("brokers", example="holdmq cluster brokers --cluster plant")
def brokers(given: Asking) -> None:
    """List the registered brokers: cluster, address, machine room, and how long each was silent."""
    view = _run(given.configuration(), lambda admin: admin.cluster())
    rows = [{**row._asdict(), "silent_ms": view.silent_ms.get(row.broker, 0)} for row in view.brokers]
    given.table(
        ("cluster", "broker", "address", "room", "epoch", "silent"),
        rows,
        lambda row: (
            *(row[name] for name in ("cluster", "broker", "address", "room")),
            row["epoch"] or "",
            f"{row['silent_ms'] / 1000:.0f} s",
        ),
    )


def _run(config: Config, work: Callable[[Admin], Awaitable[T]]) -> T:
    from holdmq.client.admin import Admin

    return run_calls(config, Admin, work)
