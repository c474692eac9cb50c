"""Takes over what every broker of the cluster is to have and this one has not: at a start, and at intervals.

A turn asks some brokers for the digests of their tables, then for the pages of those that differ: marks
first, so that nothing comes back that was deleted, settings of groups and quotas before topics, so that
nobody uses a topic without them. What is here stays as it is. A broker that is away is asked again later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any, Final, Protocol

import structlog

from broker.joining.book import SpreadBook
from broker.joining.cluster import ClusterInquiry
from broker.joining.core.comparing import MARKS, Comparison
from broker.joining.core.marks import RowKey
from broker.kernel.request_family import RequestFamily
from broker.kernel.spread_table import SpreadTable
from holdmq.errors import Code, HoldMQError, RemoteError
from holdmq.rpc.client import Client
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.headers import BrokerRow, Empty
from holdmq.wire.joining_headers import (
    SpreadDigestResponse,
    SpreadPageRequest,
    SpreadPageResponse,
    SpreadRow,
)

ASK_S: Final = 5.0
"""How long one broker may take for one answer, a connection included: it answers from memory."""
PEERS_PER_TURN: Final = 8
"""Brokers that are asked in one turn; the others follow in the next ones."""
TAKEN_AT_ONCE: Final = 2_000
"""Rows that are taken with one write of their table's file, which has all of them each time."""
CONNECTED_S: Final = 1.0
"""How long a broker that has registered waits before it takes topics: gateways that have to read what
comes to them connect to it first."""
AGAIN_S: Final = 5.0
"""When who got no answer at all since its start asks again, if the interval is not shorter."""

log = structlog.get_logger("holdmq.broker")


class KnowsBrokers(Protocol):
    """What a broker's registration knows of the cluster."""

    interval_s: float
    was_registered: asyncio.Event
    """Set once a registry has this broker."""
    brokers: list[BrokerRow]
    """All live brokers, as a registry said last."""


class Spreading(RequestFamily):
    """Runs the turns of one broker, whose tables are in `book`, and gone through in its order.

    `settled` is called after the first whole turn.
    """

    def __init__(self, book: SpreadBook, settled: Callable[[], None]) -> None:
        self.turns = 0
        self._book = book
        self._settled = settled
        self._is_settled = False
        self._comparison = Comparison()
        self._taken: dict[str, int] = dict.fromkeys(book.tables, 0)
        self._refused: dict[tuple[str, str], str] = {}
        self._said: set[RowKey] = set()

    def numbers(self) -> Mapping[str, int]:
        return {
            "spread_turns_total": self.turns,
            "spread_refusals": len(self._refused),
            "spread_deleted_elsewhere": len(self._said),
            **{f"spread_{table}_taken_total": count for table, count in self._taken.items()},
        }

    async def run(self, known: KnowsBrokers, cluster: ClusterInquiry) -> None:
        """Take turns until cancelled."""
        await known.was_registered.wait()
        await asyncio.sleep(CONNECTED_S)
        while True:
            try:
                await self.turn(cluster.others(known.brokers), cluster.connect)
            except HoldMQError as error:
                log.warning("what others have is not taken over; trying again", reason=str(error))
            wait_s = known.interval_s
            await asyncio.sleep(wait_s if self._is_settled else min(AGAIN_S, wait_s))

    async def turn(self, peers: Mapping[str, str], connect: Callable[[str], Client]) -> None:
        """Ask some of these brokers, and take what is lacking. Raises HoldMQError for what is wrong here."""
        self.turns += 1
        self._book.expire()
        chosen = self._comparison.chosen(peers, PEERS_PER_TURN)
        async with AsyncExitStack() as ending:
            found = await asyncio.gather(
                *(self._compare(name, connect(address), ending) for name, address in chosen.items())
            )
            differing = [peer for peer in found if peer is not None]
            # Of all of them first: one may know of a deletion that another was not told yet.
            are_whole = [await self._learn_from(peer) for peer in differing]
            await self._drop_deleted()
            for name, table in self._book.tables.items():
                are_whole += [await self._take_from(peer, name, table) for peer in differing]
        if not self._is_settled and all(are_whole) and (differing or not peers):
            self._is_settled = True
            self._settled()

    async def _compare(self, name: str, client: Client, ending: AsyncExitStack) -> _Peer | None:
        ending.push_async_callback(client.close)
        peer = _Peer(name, client)
        try:
            reply = await client.call(RequestCode.SPREAD_DIGEST, Empty(), ASK_S)
            peer.digests = reply.header(SpreadDigestResponse).digests
        except HoldMQError as error:
            if isinstance(error, RemoteError) and error.code == Code.UNKNOWN_REQUEST:
                return peer  # one of an earlier build has nothing to tell
            log.info("a broker does not say what it has; it is asked again", broker=name, reason=str(error))
            return None
        return peer

    async def _learn_from(self, peer: _Peer) -> bool:
        if not self._comparison.differs(peer.name, MARKS, peer.digests, self._book.digests()):
            return True

        async def learn(found: list[SpreadRow]) -> None:
            self._book.learn(found)

        is_whole = await peer.go_through(MARKS, learn)
        if is_whole:
            self._comparison.gone_through(peer.name, MARKS, peer.digests, self._book.digests())
        return is_whole

    async def _drop_deleted(self) -> None:
        """What was deleted while this broker did not hear of it goes, unless it is in use here."""
        kept: set[RowKey] = set()
        for key in self._book.deleted_elsewhere():
            if await self._book.tables[key.table].drop_unused(key.name):
                log.warning("deleted, as it was at other brokers", table=key.table, name=key.name)
                continue
            kept.add(key)
            if key not in self._said:
                log.warning(
                    "it was deleted at other brokers while this one was away, and is in use here: delete it "
                    "again, or create it again",
                    table=key.table,
                    name=key.name,
                )
        self._said = kept

    async def _take_from(self, peer: _Peer, name: str, table: SpreadTable) -> bool:
        own = self._book.digests()
        if not self._comparison.differs(peer.name, name, peer.digests, own):
            return True
        refused = ""
        lacking: dict[str, dict[str, Any]] = {}

        async def look(found: list[SpreadRow]) -> None:
            for row in found:
                if not (table.has(row.name) or self._book.marks.is_deleted(RowKey(name, row.name))):
                    lacking[row.name] = row.settings
            if len(lacking) >= TAKEN_AT_ONCE:
                await take()

        async def take() -> None:
            nonlocal refused
            if not lacking:
                return
            taken = await table.take(lacking)
            lacking.clear()
            refused = taken.refused or refused
            self._taken[name] += len(taken.names)
            if taken.names:
                log.info(
                    "taken over from another broker",
                    broker=peer.name,
                    table=name,
                    count=len(taken.names),
                    first=taken.names[0],
                )

        is_whole = await peer.go_through(name, look)
        await take()
        self._say_refused(peer.name, name, refused)
        if is_whole and not refused:
            self._comparison.gone_through(peer.name, name, peer.digests, self._book.digests())
        return is_whole

    def _say_refused(self, peer: str, table: str, refused: str) -> None:
        key = (peer, table)
        if not refused:
            self._refused.pop(key, None)
        elif self._refused.get(key) != refused:
            self._refused[key] = refused
            log.warning("not all is taken over from a broker", broker=peer, table=table, reason=refused)


class _Peer:
    """A broker that answers; `digests` are those of its tables."""

    def __init__(self, name: str, client: Client) -> None:
        self.name = name
        self.digests: Mapping[str, int] = {}
        self._client = client
        self._is_lost = False

    async def go_through(self, table: str, took: Callable[[list[SpreadRow]], Awaitable[None]]) -> bool:
        """Call `took` with each page of a table; False if it is away by now."""
        after: str | None = ""
        while after is not None and not self._is_lost:
            try:
                reply = await self._client.call(
                    RequestCode.SPREAD_PAGE, SpreadPageRequest(table, after), ASK_S
                )
                page = reply.header(SpreadPageResponse)
                found = rows(SpreadRow, page.rows)
            except HoldMQError as error:
                log.info("a broker does not tell all it has; it is asked again", broker=self.name,
                         reason=str(error))  # fmt: skip
                self._is_lost = True
                return False
            await took(found)
            after = page.next_after if page.next_after is None or page.next_after > after else None
        return not self._is_lost
