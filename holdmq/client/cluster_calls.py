"""What everything that asks brokers shares: routes, a call to one broker, and one to each that is live."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, TypeVar

from holdmq.client.calls import call_until
from holdmq.client.lifecycle import RoutedClient
from holdmq.client.route import RouteTable
from holdmq.errors import Code, HoldMQError, TransportError
from holdmq.rpc.connection import Reply
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import Header

if TYPE_CHECKING:
    from holdmq.rpc.security import Security

T = TypeVar("T")


class ClusterCalls(RoutedClient):
    """Asks brokers over a RouteTable of its own, or over `routes`, which the caller starts and closes.

    Its own is made with `registries`, `role`, `security`, `cluster` ("" = brokers of all) and `client_id`
    ("" = `kind` and a random number). `timeout_s`: deadline of one request to one broker.
    """

    def __init__(
        self,
        kind: str,
        registries: Sequence[str],
        client_id: str,
        role: str,
        routes: RouteTable | None,
        security: Security | None,
        timeout_s: float,
        cluster: str,
        tenant: str,
    ) -> None:
        client_id = client_id or f"{kind}-{secrets.token_hex(8)}"
        super().__init__(registries, client_id, routes, security, cluster, tenant, role=role)
        self.timeout_s = timeout_s

    async def call(
        self, code: RequestCode, broker: str, header: Header, timeout_s: float | None = None
    ) -> Reply:
        """Ask one broker, again while that makes sense, until `timeout_s` (None = this object's) is over."""
        wait_s = self.timeout_s if timeout_s is None else timeout_s
        return await call_until(self.routes, wait_s, code, lambda _: (broker, header))

    async def _live_brokers(self) -> list[str]:
        """Live brokers by name, as a registry says now; TransportError if there is none."""
        await self.routes.refresh()
        names = sorted(self.routes.brokers())
        if not names:
            raise TransportError(self.routes.no_broker)
        return names

    async def _ask_all(
        self, code: RequestCode, header: Header, timeout_s: float | None = None
    ) -> dict[str, Reply | HoldMQError]:
        """One answer or error per live broker; TransportError if there is none."""
        return await self._ask_each(code, dict.fromkeys(await self._live_brokers(), header), timeout_s)

    async def _read_all(
        self, code: RequestCode, header: Header, read: Callable[[Reply], T], timeout_s: float | None = None
    ) -> dict[str, T | HoldMQError]:
        """What `read` finds in the answer of each live broker, or its error."""
        return read_each(await self._ask_all(code, header, timeout_s), read)

    async def _ask_each(
        self, code: RequestCode, headers: Mapping[str, Header], timeout_s: float | None = None
    ) -> dict[str, Reply | HoldMQError]:
        """One answer or error per broker, which are asked at the same time."""

        async def ask(broker: str, header: Header) -> Reply | HoldMQError:
            try:
                return await self.call(code, broker, header, timeout_s)
            except HoldMQError as error:
                return error

        answers = await asyncio.gather(*(ask(broker, header) for broker, header in headers.items()))
        return dict(zip(headers, answers, strict=True))


class AdminCalls(ClusterCalls):
    """ClusterCalls of those who look after a cluster. `timeout_s` None = the class's `TIMEOUT_S`.

    `tenant`: topics and groups are named in its words, and lists have what is its own ("" = everything, in
    whole names).
    """

    KIND: ClassVar[str]
    TIMEOUT_S: ClassVar[float]

    def __init__(
        self,
        registries: Sequence[str] = (),
        *,
        client_id: str = "",
        role: str = "console",
        routes: RouteTable | None = None,
        security: Security | None = None,
        cluster: str = "",
        timeout_s: float | None = None,
        tenant: str = "",
    ) -> None:
        wait_s = self.TIMEOUT_S if timeout_s is None else timeout_s
        super().__init__(self.KIND, registries, client_id, role, routes, security, wait_s, cluster, tenant)


def read_each(
    answers: Mapping[str, Reply | HoldMQError], read: Callable[[Reply], T]
) -> dict[str, T | HoldMQError]:
    """What `read` finds in each answer; errors stay what they are."""
    return {
        broker: reply if isinstance(reply, HoldMQError) else read(reply) for broker, reply in answers.items()
    }


def known(answers: Mapping[str, Reply | HoldMQError], unknown: Collection[Code] = ()) -> dict[str, Reply]:
    """The answers, without the brokers that do not know (`unknown`) what was asked for, unless none does.

    Raises the first other error.
    """
    found = {broker: answer for broker, answer in answers.items() if isinstance(answer, Reply)}
    errors = [answer for answer in answers.values() if isinstance(answer, HoldMQError)]
    serious = [error for error in errors if error.code not in unknown]
    if serious or (errors and not found):
        raise (serious or errors)[0]
    return found
