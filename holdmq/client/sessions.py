"""MQTT sessions over all brokers: listed, shown, dropped. See docs/sessions.md."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final, NamedTuple

from holdmq.client.cluster_calls import AdminCalls, known
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.session_headers import (
    SessionDropRequest,
    SessionDropResponse,
    SessionListRequest,
    SessionListResponse,
    SessionRow,
    SessionShowRequest,
    SessionShowResponse,
    decode_content,
)
from holdmq.wire.session_state import FilterOptions, SessionState, decode_options, decode_state

if TYPE_CHECKING:
    pass

TIMEOUT_S: Final = 10.0
"""Deadline of one request, retries included."""


class SessionView(NamedTuple):
    """A session as its owner, `broker`, has it."""

    broker: str
    row: SessionRow


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

    async def drop(self, client_id: str) -> bool:
        """Disconnect a client and forget its session, durably; whether it had one."""
        answers = known(await self._ask_all(RequestCode.SESSION_DROP, SessionDropRequest(client_id)))
        return any(reply.header(SessionDropResponse).was_present for reply in answers.values())
