"""Tables: the newest value by key, shared by all who ask, kept by the brokers.

A table is a topic of kind `table`. Each key belongs to one of the table's brokers, by rendezvous hash over
their names, and to one of that broker's queues. A broker that is away keeps its keys: they cannot be read or
changed until it is back. What a read shows includes every change that was acknowledged to anybody before.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import xxhash

from holdmq.client.calls import call_until
from holdmq.client.cluster_calls import ClusterCalls
from holdmq.client.names import check_topic
from holdmq.client.route import RouteTable
from holdmq.errors import Code, RemoteError, TransportError, WireError
from holdmq.names.topics import queue_of_key
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import Header, rows
from holdmq.wire.headers import TopicCreateRequest
from holdmq.wire.table_headers import (
    NO_VALUE,
    TableChanged,
    TableChangeRequest,
    TableGetRequest,
    TableGetResponse,
    TableRow,
    TableScanRequest,
    TableScanResponse,
)

if TYPE_CHECKING:
    from holdmq.client.table_watch import TableWatch
    from holdmq.rpc.security import Security

KIND_TABLE: Final = "table"
TIMEOUT_S: Final = 30.0
"""Deadline of a call, all retries included: a broker's restart fits in."""
GET_KEYS_MAX: Final = 1_000
"""Keys asked for at a time."""
PAGE_ROWS: Final = 1_000
PAGE_BYTES: Final = 1 << 20
"""Of one broker, in one page of a scan."""
_PLAIN_KEY_MAX: Final = 367
"""Keys up to here are in the order of their bytes; of longer ones the digest decides (wire.table_headers)."""


class TableEntry(NamedTuple):
    """A row. `version` rises with every change of the key; it compares with nothing else."""

    key: str
    value: bytes
    version: int


class TablePage(NamedTuple):
    """A part of a scan. `next_after`: ask again behind this key; None = that was all."""

    entries: list[TableEntry]
    next_after: str | None


class Table(ClusterCalls):
    """One table. Use it as `async with Table("prices", ["host:9876"]) as table`, on one event loop.

    `routes`: share this RouteTable, which the caller starts and closes. `tenant`: whose table `name` is, ""
    = it is a whole name. Every call retries for `timeout_s` and then raises TransportError (RequestTimeout:
    whether a change was made is unknown). RemoteError says what is wrong for good: TOPIC_UNKNOWN, KIND_UNFIT
    (no table), TOPIC_PERM.
    """

    def __init__(
        self,
        name: str,
        registries: Sequence[str] = (),
        *,
        client_id: str = "",
        routes: RouteTable | None = None,
        security: Security | None = None,
        cluster: str = "",
        timeout_s: float = TIMEOUT_S,
        tenant: str = "",
    ) -> None:
        check_topic(name)
        super().__init__(
            "table", registries, client_id, "client", routes, security, timeout_s, cluster, tenant
        )
        self.routes.check_name(name)
        self.name = name
        self._id = secrets.token_hex(8)
        self._requests = 0
        self._queues: dict[str, list[int]] = {}
        """Ids of the table's queues by broker, also of those that are away."""
        self._watches: set[TableWatch] = set()

    async def _finish(self, timeout_s: float | None) -> None:
        for watch in list(self._watches):
            await watch.close()

    async def create(self, queues: int = 0) -> None:
        """Create the table on every live broker (`queues` at each, 0 = the broker's default).

        Creating it again with the same settings changes nothing: it stays at the brokers that have it, as its
        keys are spread over them, and one more would take keys over without their rows.
        """
        brokers = await self._live_brokers()
        have_it = set(await self.brokers(True))
        brokers = [broker for broker in brokers if broker in have_it or not have_it]
        # Ordered: registries then remember its brokers, and no key goes elsewhere while one is away.
        request = TopicCreateRequest(self.name, queues, kind=KIND_TABLE, order=True)
        await asyncio.gather(*(self.call(RequestCode.TOPIC_CREATE, broker, request) for broker in brokers))
        await self._routed_to(set(brokers))

    async def _routed_to(self, brokers: set[str]) -> None:
        """Wait until registries know that these brokers have the table."""
        changed = asyncio.Event()

        def on_routes(topics: frozenset[str]) -> None:
            changed.set()

        self.routes.on_routes.append(on_routes)
        try:
            async with asyncio.timeout(self.timeout_s):
                while not brokers <= set(await self.brokers(True)):
                    await changed.wait()
                    changed.clear()
        except TimeoutError:
            raise TransportError(f"no registry shows table {self.name!r} at {', '.join(brokers)}") from None
        finally:
            self.routes.on_routes.remove(on_routes)

    # Reads

    async def get(self, key: str) -> TableEntry | None:
        """The row of a key; None = it has no value."""
        return (await self.get_many([key]))[0]

    async def get_many(self, keys: Iterable[str]) -> list[TableEntry | None]:
        """The rows of many keys, in their order."""
        wanted = list(keys)
        brokers = await self.brokers()
        by_broker: dict[str, list[int]] = {}
        for at, key in enumerate(wanted):
            by_broker.setdefault(owner_of(key, brokers), []).append(at)
        found: list[TableEntry | None] = [None] * len(wanted)

        async def ask(broker: str, places: list[int]) -> None:
            while places:
                part = places[:GET_KEYS_MAX]
                request = TableGetRequest(self.name, [wanted[at] for at in part])
                reply = await self.call(RequestCode.TABLE_GET, broker, request)
                answered = with_values(reply.body, rows(TableRow, reply.header(TableGetResponse).rows))
                if not answered:
                    raise WireError("a TABLE_GET was answered without any row")
                for at, (row, value) in zip(part, answered, strict=False):
                    found[at] = None if value is None else TableEntry(row.key, value, row.version)
                places = places[len(answered) :]

        await asyncio.gather(*(ask(broker, places) for broker, places in by_broker.items()))
        return found

    async def scan_page(
        self, prefix: str = "", after: str | None = None, max_count: int = PAGE_ROWS
    ) -> TablePage:
        """A page of the rows whose keys begin with `prefix`, behind the key `after`, which need not exist.

        In the order of the keys' UTF-8 bytes (but see wire.table_headers for keys of more than 367). All
        brokers of the table are asked. Each page shows its own moment.
        """
        brokers = await self.brokers()
        count = max(1, min(max_count, PAGE_ROWS))
        pages = await asyncio.gather(*(self.scan_broker(b, prefix, after, count) for b in brokers))
        limit = min((order_of(p.next_after) for _, p in pages if p.next_after is not None), default=None)
        merged = sorted(
            (order_of(entry.key), entry)
            for broker, (_, page) in zip(brokers, pages, strict=True)
            for entry in page.entries
            # A key's row at another broker than its own is what a broker left that has taken it over.
            if owner_of(entry.key, brokers) == broker
        )
        whole = [entry for order, entry in merged if limit is None or order <= limit]
        entries = whole[:count]
        if len(entries) < len(whole):
            return TablePage(entries, entries[-1].key)
        if limit is None:
            return TablePage(entries, None)
        stop = next(p.next_after for _, p in pages if p.next_after and order_of(p.next_after) == limit)
        return TablePage(entries, stop)

    async def scan(self, prefix: str = "") -> AsyncIterator[TableEntry]:
        """All rows whose keys begin with `prefix`, page by page; see `scan_page`."""
        after: str | None = None
        while True:
            page = await self.scan_page(prefix, after)
            for entry in page.entries:
                yield entry
            after = page.next_after
            if after is None:
                return

    async def scan_broker(
        self, broker: str, prefix: str, after: str | None, max_count: int = PAGE_ROWS
    ) -> tuple[int, TablePage]:
        """One broker's page, and the log position up to which it shows everything."""
        request = TableScanRequest(self.name, prefix, after, max_count, PAGE_BYTES)
        reply = await self.call(RequestCode.TABLE_SCAN, broker, request)
        answer = reply.header(TableScanResponse)
        entries = [
            TableEntry(row.key, value, row.version)
            for row, value in with_values(reply.body, rows(TableRow, answer.rows))
            if value is not None
        ]
        return answer.position, TablePage(entries, answer.next_after)

    # Changes

    async def put(
        self, key: str, value: bytes, *, if_version: int | None = None, timeout_s: float | None = None
    ) -> int:
        """Give a key a value; returns the row's version, once the log has it.

        `if_version`: only if the row has this version, -1 = if the key has no value; else RemoteError with
        ROW_CHANGED, whose `ext_fields["version"]` is the one it has. Retries make the change once, over a
        restart of the broker too.
        """
        return await self._change(RequestCode.TABLE_PUT, key, value, if_version, timeout_s)

    async def delete(self, key: str, *, if_version: int | None = None, timeout_s: float | None = None) -> int:
        """Take a key's value away, which it need not have; otherwise as `put`."""
        return await self._change(RequestCode.TABLE_DELETE, key, b"", if_version, timeout_s)

    async def _change(
        self, code: RequestCode, key: str, value: bytes, if_version: int | None, timeout_s: float | None
    ) -> int:
        await self.brokers()
        self._requests += 1
        request_id = f"{self._id}-{self._requests}"

        def ask(is_repeat: bool) -> tuple[str, Header]:
            self._learn()
            broker = owner_of(key, list(self._queues))
            _, queue_id = queue_of_key(key, [(broker, q) for q in self._queues[broker] or [0]])
            return broker, TableChangeRequest(self.name, queue_id, key, request_id, is_repeat, if_version)

        wait_s = self.timeout_s if timeout_s is None else timeout_s
        reply = await call_until(self.routes, wait_s, code, ask, value)
        return reply.header(TableChanged).version

    def watch(self, prefix: str = "", *, with_rows: bool = True) -> TableWatch:
        """Be told of changes of keys that begin with `prefix`; see `TableWatch`.

        `with_rows`: begin with the rows that there are.
        """
        from holdmq.client.table_watch import TableWatch

        watch = TableWatch(self, prefix, with_rows, self._watches.discard)
        self._watches.add(watch)
        return watch

    # Where keys are

    async def brokers(self, is_fresh: bool = False) -> list[str]:
        """The brokers that the table is on, by name, also those that went away since this object knows it.

        Raises RemoteError (TOPIC_UNKNOWN, KIND_UNFIT), TransportError when no registry answers.
        """
        self.routes.start()
        if is_fresh:
            self.routes.follow([self.name])
            await self.routes.refresh()
        if not self._learn():
            await self.routes.topic(self.name)
            self._learn()
        if not self._queues and not is_fresh:
            raise RemoteError(Code.TOPIC_UNKNOWN, f"there is no table {self.name!r}; create it first")
        return list(self._queues)

    def is_owner(self, broker: str, key: str) -> bool:
        """Whether a key belongs to this broker, as far as is known now."""
        return owner_of(key, list(self._queues)) == broker

    def _learn(self) -> bool:
        """Take what the route says now; False = nothing is known."""
        route = self.routes.get(self.name)
        if route is None:
            return bool(self._queues)
        if route.kind != KIND_TABLE:
            raise RemoteError(Code.KIND_UNFIT, f"topic {self.name!r} is of kind {route.kind}, no table")
        queues: dict[str, list[int]] = {queue.broker: [] for queue in route.read_queues}
        for queue in route.write_queues:
            queues.setdefault(queue.broker, []).append(queue.queue_id)
        for broker in list(self._queues):
            if self.routes.is_given_up(broker) and broker not in queues:
                del self._queues[broker]
        if queues.keys() - self._queues.keys():
            self._queues = dict(sorted({**self._queues, **queues}.items()))
        else:
            self._queues.update(queues)
        return True


def owner_of(key: str, brokers: Sequence[str]) -> str:
    """The broker that a key belongs to."""
    return brokers[0] if len(brokers) == 1 else queue_of_key(key, [(broker, 0) for broker in brokers])[0]


def order_of(key: str) -> bytes:
    """What keys are in the order of."""
    raw = key.encode()
    if len(raw) <= _PLAIN_KEY_MAX:
        return raw
    return raw[:_PLAIN_KEY_MAX] + xxhash.xxh3_128_digest(raw)


def with_values(body: memoryview, found: list[TableRow]) -> list[tuple[TableRow, bytes | None]]:
    """Rows with their values, which lie in `body` one after the other; None = no value. Raises WireError."""
    out: list[tuple[TableRow, bytes | None]] = []
    at = 0
    for row in found:
        if row.length_bytes == NO_VALUE:
            out.append((row, None))
            continue
        if row.length_bytes < 0:
            raise WireError(f"row {row.key!r} has a length of {row.length_bytes}")
        out.append((row, bytes(body[at : at + row.length_bytes])))
        at += row.length_bytes
    if at != len(body):
        raise WireError(f"rows of {at} bytes with a body of {len(body)}")
    return out
