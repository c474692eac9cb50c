"""What the registry and the brokers say of themselves, as the API's rows.

The admin SDK asks a registry for the brokers, and each broker for the rest, at most once per `FRESH_S`
however many ask. A broker that does not answer is a row that says so, never an error.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections import Counter
from typing import Any, Final

from console.live.answers import second_text
from holdmq.client.admin import Admin, ClusterView, TopicPage, TopicView
from holdmq.errors import HoldMQError
from holdmq.rpc.security import Security
from holdmq.wire.headers import BrokerRow, BrokerStatusResponse, ConnectionRow
from holdmq.wire.topic_headers import PERM_INHERIT, PERM_READ, PERM_WRITE

FRESH_S: Final = 0.9
"""An answer may be this old: less than the second between two events of a stream."""

OVERVIEW_TOPICS_MAX: Final = 200
"""Topics of an event, those with most messages: a page of more rows is no overview. The API has all."""

OVERVIEW_CONNECTIONS_MAX: Final = 200
"""Connections of an event; the API has all."""


NAMES: Final = ("topics", "brokers", "gateways", "connections")

Rows = dict[str, list[dict[str, Any]]]


class Cluster:
    """Asks the cluster whose registries are `registries` (host:port each). Call `open` before use.

    `name`: where they know several, which it is; "" = all of them together.
    """

    def __init__(self, registries: list[str], security: Security | None = None, name: str = "") -> None:
        self.client_id = f"console-{socket.gethostname()}-{os.getpid()}{'-' if name else ''}{name}"
        self.registries = registries
        self.admin = Admin(registries, client_id=self.client_id, security=security, cluster=name)
        self._turn = asyncio.Lock()
        self._asked_at = -FRESH_S
        self._view: Rows = {name: [] for name in NAMES}
        self._topic_count = 0
        self._error: HoldMQError | None = None

    async def open(self) -> None:
        """Begin connecting; returns at once."""
        await self.admin.__aenter__()

    async def close(self) -> None:
        """Close every connection to the cluster."""
        await self.admin.close()

    async def listing(self, name: str) -> dict[str, Any]:
        """Return ``{name: rows}`` for brokers, gateways or connections, with a `notice` if need be.

        Raises HoldMQError when no registry answers.
        """
        await self._refresh()
        if self._error is not None:
            raise self._error
        return self._noticed({name: self._view[name]})

    async def whole(self) -> dict[str, Any]:
        """Return brokers, gateways and the `counts` of all lists. Raises HoldMQError."""
        await self._refresh()
        if self._error is not None:
            raise self._error
        brokers, gateways = self._view["brokers"], self._view["gateways"]
        return self._noticed({"brokers": brokers, "gateways": gateways, "counts": self._counts(self._view)})

    async def names(self) -> dict[str, list[str]]:
        """Return the clusters that have brokers, and these, both by name. Raises HoldMQError."""
        return (await self.admin.cluster()).clusters()

    async def topics(
        self, search: str, sort: str, offset: int, count: int, include_system: bool
    ) -> dict[str, Any]:
        """Return a page of the topics as `Admin.topic_page` has it, their `total`, and a `notice` if need be.

        Raises HoldMQError when no registry answers.
        """
        asked = self._topics(search, sort, offset, count, include_system=include_system)
        page, _ = await asyncio.gather(asked, self._refresh())
        if self._error is not None:
            raise self._error
        return self._noticed({"topics": [topic_row(topic) for topic in page.topics], "total": page.total})

    def forget(self) -> None:
        """Ask anew when somebody asks next: something was changed."""
        self._asked_at = -FRESH_S

    async def overview(self) -> dict[str, Any]:
        """Return all four lists, cut to what a page shows, and their whole `counts`; raises nothing.

        When no registry answers the lists are empty and `notice` says why.
        """
        await self._refresh()
        view: Rows = self._view if self._error is None else {name: [] for name in NAMES}
        answer: dict[str, Any] = {
            "topics": view["topics"],
            "brokers": view["brokers"],
            "gateways": view["gateways"],
            "connections": view["connections"][:OVERVIEW_CONNECTIONS_MAX],
            "counts": self._counts(view),
        }
        return self._noticed(answer)

    def _counts(self, view: Rows) -> dict[str, int]:
        return {name: len(found) for name, found in view.items()} | {
            "topics": self._topic_count if view["topics"] else 0
        }

    def _noticed(self, answer: dict[str, Any]) -> dict[str, Any]:
        if self._error is not None:
            answer["notice"] = f"the cluster cannot be asked: {self._error}"
            return answer
        away = [b["broker"] for b in self._view["brokers"] if not b["reachable"]]
        if not self._view["brokers"]:
            answer["notice"] = "no broker has registered yet"
        elif away:
            answer["notice"] = f"no answer from {', '.join(away)}: what only they know is missing"
        return answer

    async def _refresh(self) -> None:
        async with self._turn:
            if time.monotonic() - self._asked_at < FRESH_S:
                return
            try:
                self._view = await self._ask()
                self._error = None
            except HoldMQError as error:
                self._error = error
            self._asked_at = time.monotonic()

    async def _ask(self) -> Rows:
        cluster = await self.admin.cluster()
        if not cluster.brokers:
            return {name: [] for name in NAMES}
        states, listed, topics = await asyncio.gather(
            self.admin.broker_status(),
            self.admin.connections(),
            self._topics(sort="-messages_in", count=OVERVIEW_TOPICS_MAX),
        )
        self._topic_count = topics.total
        connections = [
            _connection_row(broker, row)
            for broker, found in listed.items()
            if not isinstance(found, HoldMQError)
            for row in found
        ]
        return {
            "topics": [topic_row(topic) for topic in topics.topics],
            "brokers": _broker_rows(cluster, states, connections),
            "gateways": _gateway_rows(connections),
            "connections": sorted(connections, key=lambda c: (c["role"], c["client_id"], c["broker"])),
        }

    async def _topics(self, *page: Any, **more: Any) -> TopicPage:
        try:
            return await self.admin.topic_page(*page, **more)
        except HoldMQError:
            # No broker answered; their rows say so, each with its reason.
            return TopicPage([], 0)


def topic_row(topic: TopicView) -> dict[str, Any]:
    """Return a topic as the API shows it; settings as at the first of its brokers."""
    settings = [topic.rows[broker] for broker in sorted(topic.rows)]
    return {
        "topic": topic.topic,
        "kind": settings[0].kind,
        "read_queues": topic.queues,
        "write_queues": sum(row.write_queues for row in settings),
        "stored_queues": sum(row.stored_queues or row.read_queues for row in settings),
        "brokers": sorted(topic.rows),
        "perm": perm_letters(settings[0].perm),
        "order": settings[0].order,
        "retention_ms": settings[0].retention_ms,
        "first_group": settings[0].first_group,
        "first_reader": next((row.first_reader for row in settings if row.first_reader), ""),
        "spread": settings[0].spread,
        "key_levels": settings[0].key_levels,
        "is_paused": any(row.is_paused for row in settings),
        "messages_in": topic.messages_in,
        "bytes_in": topic.bytes_in,
        "messages_out": topic.messages_out,
        "bytes_out": topic.bytes_out,
        "messages_replayed": topic.messages_replayed,
        "bytes_replayed": topic.bytes_replayed,
        "messages_stored": topic.messages_stored,
    }


def perm_letters(perm: int) -> str:
    """Return what clients may do with a topic: r, w, i, or none."""
    letters = (("r", PERM_READ), ("w", PERM_WRITE), ("i", PERM_INHERIT))
    return "".join(letter for letter, bit in letters if perm & bit) or "none"


def _broker_rows(
    cluster: ClusterView,
    states: dict[str, BrokerStatusResponse | HoldMQError],
    connections: list[dict[str, Any]],
) -> list[dict[str, Any]]:
    connected = Counter(row["broker"] for row in connections)
    return [
        _broker_row(row, states.get(row.broker), connected[row.broker])
        for row in sorted(cluster.brokers, key=lambda row: row.broker)
    ]


def _broker_row(
    row: BrokerRow, state: BrokerStatusResponse | HoldMQError | None, connections: int
) -> dict[str, Any]:
    known: dict[str, Any] = {
        "broker": row.broker,
        "cluster": row.cluster,
        "address": row.address,
        "epoch": row.epoch,
        "room": row.room,
        "connections": connections,
    }
    if not isinstance(state, BrokerStatusResponse):
        away: dict[str, Any] = {"reachable": False, "writable": False, "log_bytes": 0}
        reason = "registered a moment ago" if state is None else str(state)
        return {**known, **away, "reason": reason, "confirmed_position": 0, "numbers": {}}
    return {
        **known,
        "reachable": True,
        "writable": state.writable,
        "reason": "" if state.writable else state.reason,
        "log_bytes": state.confirmed_position - state.first_position,
        "confirmed_position": state.confirmed_position,
        "numbers": state.numbers,
    }


def _connection_row(broker: str, row: ConnectionRow) -> dict[str, Any]:
    return {
        "broker": broker,
        "role": row.role,
        "client_id": row.client_id,
        "address": row.address,
        "language": row.language,
        "software": row.software,
        "connected": second_text(row.connected_ms // 1000),
        "state": row.state,
        "principal": row.principal,
        "kinds": row.kinds,
        "produces": row.produces,
        "groups": sorted({subscription[0] for subscription in row.subscriptions}),
        "reads": sorted({*(subscription[2] for subscription in row.subscriptions), *row.reads}),
    }


def _gateway_rows(connections: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per gateway worker, which has a connection to every broker."""
    workers: dict[str, dict[str, Any]] = {}
    for row in connections:
        if row["role"] != "gateway":
            continue
        worker = workers.setdefault(
            row["client_id"],
            {
                "client_id": row["client_id"],
                "address": row["address"],
                "software": row["software"],
                "connected": row["connected"],
                "brokers": [],
                "state": row["state"],
            },
        )
        worker["brokers"].append(row["broker"])
        worker["connected"] = min(worker["connected"], row["connected"])
    return [workers[name] for name in sorted(workers)]
