"""MQTT sessions over all brokers: listed, shown, disconnected, dropped. See docs/sessions.md."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final, NamedTuple

from holdmq.client.cluster_calls import AdminCalls, known
from holdmq.mqtt.filters import SHARE_PREFIX
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.session_headers import (
    SessionDropRequest,
    SessionDropResponse,
    SessionKickRequest,
    SessionKickResponse,
    SessionListRequest,
    SessionListResponse,
    SessionRow,
    SessionShowRequest,
    SessionShowResponse,
    decode_content,
)
from holdmq.wire.session_state import FilterOptions, SessionState, decode_options, decode_state
from holdmq.wire.share_headers import (
    JOINS_MAX,
    ShareGroupRow,
    ShareLeave,
    ShareLeaveRequest,
    ShareListRequest,
    ShareListResponse,
)

LOOK_COUNT: Final = 1_000
"""Sessions that a broker looks at for one answer, at most."""
TIMEOUT_S: Final = 10.0
"""Deadline of one request, retries included."""


class SessionView(NamedTuple):
    """A session as its owner, `broker`, has it."""

    broker: str
    row: SessionRow


class SessionPage(NamedTuple):
    """A part of the sessions, by client id, and the client id to go on behind (None: that was all)."""

    sessions: list[SessionView]
    next_after: str | None


class ShareView(NamedTuple):
    """A share group as one broker has it, for its own log."""

    broker: str
    row: ShareGroupRow


class SessionDetails(NamedTuple):
    """A session, where it stands as it last wrote, and its subscriptions."""

    broker: str
    row: SessionRow
    state: SessionState
    filters: dict[str, FilterOptions]


class SessionAdmin(AdminCalls):
    """Asks brokers for sessions: `async with SessionAdmin(["host:9876"]) as sessions`, on one event loop.

    `routes`: share this RouteTable, which the caller starts and closes. Every call raises TransportError when
    a broker does not answer within `timeout_s`, RemoteError when one refuses.
    """

    KIND = "sessions"
    TIMEOUT_S = TIMEOUT_S

    async def list(self, prefix: str = "") -> AsyncIterator[SessionView]:
        """Sessions whose client id begins with `prefix`, broker by broker, by client id."""
        for broker in await self._live_brokers():
            after: str | None = ""
            while after is not None:
                reply = await self.call(RequestCode.SESSION_LIST, broker, SessionListRequest(prefix, after))
                answer = reply.header(SessionListResponse)
                for row in rows(SessionRow, answer.sessions):
                    yield SessionView(broker, row)
                after = answer.next_after

    async def page(
        self, prefix: str, after: str, count: int, *, is_online: bool | None = None
    ) -> SessionPage:
        """Return at most `count` sessions of this `prefix`, of all brokers, behind the client id `after`.

        `is_online`: only those that are connected (False: are not). Of those that are not a page may have
        fewer than there are, even none: go on behind `next_after`.
        """
        wanted = count
        if is_online is False:
            # Brokers look at sessions of both kinds: at many for each answer, whose rows are not all shown.
            count = LOOK_COUNT
        request = SessionListRequest(prefix, after, count, bool(is_online))
        found: list[SessionView] = []
        ends: list[str] = []
        for broker, reply in known(await self._ask_all(RequestCode.SESSION_LIST, request)).items():
            answer = reply.header(SessionListResponse)
            found += [SessionView(broker, row) for row in rows(SessionRow, answer.sessions)]
            if answer.next_after is not None:
                ends.append(answer.next_after)
        # Behind the first broker's end there may be sessions of it that were not sent.
        end = min(ends, default=None)
        found.sort(key=lambda view: view.row.client_id)
        found = [view for view in found if end is None or view.row.client_id <= end]
        if is_online is not None:
            found = [view for view in found if (view.row.ended_ms == 0) == is_online]
        shown = found[:wanted]
        if len(found) > wanted:
            return SessionPage(shown, shown[-1].row.client_id)
        return SessionPage(shown, end)

    async def show(self, client_id: str) -> SessionDetails | None:
        """A client's session; None if it has none."""
        answers = known(await self._ask_all(RequestCode.SESSION_SHOW, SessionShowRequest(client_id)))
        found: list[SessionDetails] = []
        for broker, reply in answers.items():
            for row in rows(SessionRow, reply.header(SessionShowResponse).sessions):
                content = decode_content(reply.body)
                filters = {name: decode_options(options) for name, options in content.filters}
                found.append(SessionDetails(broker, row, decode_state(content.state), filters))
        # After brokers were added a client may have left one behind; the newest counts.
        return max(found, key=lambda details: details.row.epoch, default=None)

    async def kick(self, client_id: str) -> bool:
        """Disconnect a client, whose session stays; whether it was connected. It may connect again."""
        answers = known(await self._ask_all(RequestCode.SESSION_KICK, SessionKickRequest(client_id)))
        return any(reply.header(SessionKickResponse).was_connected for reply in answers.values())

    async def drop(self, client_id: str) -> bool:
        """Disconnect a client and forget its session, durably; whether it had one."""
        details = await self.show(client_id)
        answers = known(await self._ask_all(RequestCode.SESSION_DROP, SessionDropRequest(client_id)))
        held = [] if details is None else [name for name in details.filters if name.startswith(SHARE_PREFIX)]
        for at in range(0, len(held), JOINS_MAX):
            leaves = [ShareLeave(name, client_id, 0) for name in held[at : at + JOINS_MAX]]
            known(await self._ask_all(RequestCode.SHARE_LEAVE, ShareLeaveRequest(leaves)))
        return any(reply.header(SessionDropResponse).was_present for reply in answers.values())

    async def shares(self, prefix: str = "") -> AsyncIterator[ShareView]:
        """MQTT's share groups (`$share/…`) that begin with `prefix`, broker by broker, by name."""
        for broker in await self._live_brokers():
            after: str | None = ""
            while after is not None:
                reply = await self.call(RequestCode.SHARE_LIST, broker, ShareListRequest(prefix, after))
                answer = reply.header(ShareListResponse)
                for row in rows(ShareGroupRow, answer.groups):
                    yield ShareView(broker, row)
                after = answer.next_after
