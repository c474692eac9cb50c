"""Decides which clients may come in: connections of a worker and of an address, connect rate, overload, bans.

A client that may not is told so once its CONNECT came, for only then it is known how. Far beyond a bound even
that costs too much: then its connection is closed at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final, Protocol

from gateway.ground.addresses import AddressCounts, address_key, shown_key
from gateway.ground.counters import Counters
from gateway.ground.parent_port import ParentPort
from gateway.protect.core.flapping import Ban, Bans, Flapping, ban_row
from gateway.protect.core.overload import MEMORY
from gateway.protect.core.unauthenticated import UnauthenticatedBytes
from gateway.protect.overload import OverloadWatch
from gateway.session.session import Session
from holdmq.config.model import GatewaySection
from holdmq.mqtt import MqttError, ReasonCode
from holdmq.quotas.buckets import Bucket
from holdmq.rpc.tls import ServerTls
from holdmq.service import telemetry

CONNECTIONS_OVER: Final = 1000
"""Connections beyond connections_max that still get a CONNACK with the reason; more are just closed."""
ADDRESS_OVER: Final = 100
"""The same for connections_per_address_max."""

log = telemetry.get_logger()


class GuardedTransport(Protocol):
    """A socket that can be closed at once."""

    def abort(self) -> None:
        """Close it, whatever waits to be written."""


class GuardedListener(Protocol):
    """A listener that counts whom it refused."""

    @property
    def refused(self) -> Counter[str]:
        """How many, by reason."""

    @property
    def tls(self) -> ServerTls | None:
        """What its connections begin with; None = no TLS."""


class GuardedConnection(Protocol):
    """A connection that may have to go."""

    def __hash__(self) -> int:
        """Connections are told apart as objects."""

    @property
    def session(self) -> Session:
        """The session that it carries."""

    @property
    def listener(self) -> GuardedListener:
        """Where it came in."""

    @property
    def transport(self) -> GuardedTransport | None:
        """Its socket; None = that is gone."""

    @property
    def is_identified(self) -> bool:
        """Whether the client's address is known: at once, unless a proxy has to tell it."""

    def close(self, reason_code: int, reason: str, sentence: str) -> None:
        """Close from this side."""


class BarsClients(Protocol):
    """Knows whom an operator has banned."""

    def bars(self, session: Session, is_known: bool = True) -> bool:
        """Whether a client is banned; not `is_known`: it may be a tenant's, and go by another id then."""


class AdmissionGate:
    """Looks at each connection when it comes, when its address is known, and when its CONNECT is right."""

    def __init__(
        self,
        section: GatewaySection,
        counters: Counters,
        now: Callable[[], float],
        overload: OverloadWatch,
        parent: ParentPort,
        fleet: BarsClients,
    ) -> None:
        self._counters = counters
        self._fleet = fleet
        self._now = now
        self._overload = overload
        self._parent = parent
        self.is_draining = False
        self._section = section
        self._rate: Bucket | None = None
        self._addresses = AddressCounts() if section.connections_per_address_max else None
        self._flapping: Flapping | None = None
        self.bans = Bans()
        self.unauthenticated: UnauthenticatedBytes[GuardedConnection] = UnauthenticatedBytes(
            section.unauthenticated_max_bytes
        )

        self.reconfigure(section)

    def reconfigure(self, section: GatewaySection) -> None:
        """Take other limits: connects are counted anew, who is connected or banned stays so."""
        self._section = section
        self._counters.connections_max = section.connections_max
        self.unauthenticated.max_bytes = section.unauthenticated_max_bytes
        self._rate = Bucket(section.connect_rate_max, self._now()) if section.connect_rate_max else None
        flapping = section.flapping_connects_max
        self._flapping = Flapping(flapping, section.flapping_window_s) if flapping else None

    def opened(self, connection: GuardedConnection) -> None:
        """A connection was accepted, and is counted."""
        counters = self._counters
        over = counters.connections - counters.connections_max
        if self.is_draining:
            self._refuse_draining(connection)
        elif over > 0:
            self._refuse(
                connection,
                ReasonCode.SERVER_BUSY,
                "this gateway worker has gateway.connections_max connections",
            )
            if over > CONNECTIONS_OVER:
                self._cut(connection, "connections_max")
        elif self._overload.level:
            self._refuse_overloaded(connection)
        elif self._rate is not None and not self._rate.try_take(self._now()):
            bound = self._section.connect_rate_max
            sentence = f"more than gateway.connect_rate_max ({bound}) connections in a second"
            self._refuse(connection, ReasonCode.CONNECTION_RATE_EXCEEDED, sentence)
        if connection.is_identified:
            self.identified(connection)

    def identified(self, connection: GuardedConnection) -> None:
        """The client's address is known."""
        if self._addresses is None:
            return
        bound = self._section.connections_per_address_max
        over = self._addresses.opened(address_key(connection.session.born_host)) - bound
        if over > 0:
            self._refuse(
                connection,
                ReasonCode.QUOTA_EXCEEDED,
                f"this address has gateway.connections_per_address_max ({bound}) connections",
            )
            if over > ADDRESS_OVER:
                self._cut(connection, "connections_per_address_max")

    def closed(self, connection: GuardedConnection) -> None:
        """A connection is gone."""
        if self._addresses is not None and connection.is_identified:
            self._addresses.closed(address_key(connection.session.born_host))

    def holds(self, connection: GuardedConnection, change_bytes: int) -> None:
        """A connection whose client is not admitted holds more, or less; who holds most may be cut off."""
        unauthenticated = self.unauthenticated
        unauthenticated.add(connection, change_bytes)
        while (greedy := unauthenticated.one_too_many()) is not None:
            unauthenticated.forget(greedy)
            greedy.close(
                ReasonCode.QUOTA_EXCEEDED,
                "unauthenticated_max_bytes",
                "clients that are not admitted hold more than gateway.unauthenticated_max_bytes "
                f"({unauthenticated.max_bytes}), and this one holds most",
            )
            if greedy.transport is not None:
                greedy.transport.abort()  # what it holds is free at once, not when it has taken a farewell
        self._counters.unauthenticated_bytes = unauthenticated.total

    def is_known(self, connection: GuardedConnection) -> None:
        """A client is admitted, or its connection over: what it holds is not counted any more."""
        self.unauthenticated.forget(connection)
        self._counters.unauthenticated_bytes = self.unauthenticated.total

    def lets_ask(self, session: Session) -> bool:
        """Whether it is worth to find out who a client is; one that an operator has banned is told so."""
        if not self._fleet.bars(session, is_known=not session.context.may_mount):
            return True
        self._refuse_banned(session, "banned by an operator")
        return False

    def _lets_in(self, session: Session) -> bool:
        if not self._fleet.bars(session):
            return True
        self._refuse_banned(session, "banned by an operator")
        return False

    @staticmethod
    def _refuse_banned(session: Session, sentence: str) -> None:
        if session.connection is not None:
            session.connection.admitted(session.refuse(MqttError(ReasonCode.BANNED, sentence)))

    def admits(self, session: Session, principal: str) -> bool:
        """Whether a client whose CONNECT is right is not banned; else it is told so, and its session over."""
        if not self._lets_in(session):
            return False
        if self._flapping is None and not self.bans:
            return True
        key, now = (principal, address_key(session.born_host)), self._now()
        ban = self.bans.of(key, now)
        if ban is None and self._flapping is not None:
            connects = self._flapping.connected(key, now)
            if connects:
                ban = Ban(key, now + self._section.flapping_ban_s, connects)
                self._ban(ban)
        if ban is None:
            return True
        sentence = f"banned for another {ban.until - now:.0f} s, as it connected too often"
        self._refuse_banned(session, sentence)
        return False

    def sent_elsewhere(self, otherwise: ReasonCode) -> ReasonCode:
        """What a client is told by a gateway that drains: where to go, and for how long, or `otherwise`."""
        if not self._section.server_reference:
            return otherwise
        # [MQTT-4.13]: a client keeps to the other server after 0x9D, and may come back after 0x9C.
        return ReasonCode.SERVER_MOVED if self._section.drain_is_final else ReasonCode.USE_ANOTHER_SERVER

    def lift(self, principal: str | None) -> None:
        """Lift the bans of a principal, or all (None); its connects are counted anew."""
        self.bans.lift(principal)
        if self._flapping is not None:
            self._flapping.forget(principal)

    def each_second(self, now: float) -> None:
        """Forget what is over."""
        counters = self._counters
        if self.bans:
            self.bans.expire(now)
        if self._flapping is not None:
            self._flapping.expire(now)
        counters.bans = len(self.bans)
        counters.addresses = 0 if self._addresses is None else len(self._addresses)

    def _ban(self, ban: Ban) -> None:
        principal, address = ban.key
        self.bans.add(ban)
        self._counters.bans_total += 1
        self._parent.tell({"ban": ban_row(ban, self._now())})
        log.warning(
            "a client that connects too often is banned",
            client=principal,
            address=shown_key(address),
            connects=ban.connects,
            window_s=self._section.flapping_window_s,
            ban_s=self._section.flapping_ban_s,
        )

    # Refusing

    def _refuse_draining(self, connection: GuardedConnection) -> None:
        self._refuse(connection, self.sent_elsewhere(ReasonCode.SERVER_BUSY), "this gateway shuts down")

    def _refuse_overloaded(self, connection: GuardedConnection) -> None:
        cause = self._overload.cause
        code = ReasonCode.QUOTA_EXCEEDED if cause == MEMORY else ReasonCode.SERVER_BUSY
        self._counters.overload_refused_total += 1
        self._refuse(connection, code, f"this gateway worker has too much to do ({cause})")
        if connection.listener.tls is not None:
            self._cut(connection, "overload")  # a handshake to say so costs ten times what a client does

    @staticmethod
    def _refuse(connection: GuardedConnection, code: ReasonCode, sentence: str) -> None:
        connection.session.refuse_with = MqttError(code, sentence)

    def _cut(self, connection: GuardedConnection, reason: str) -> None:
        self._counters.refused[reason] += 1
        connection.listener.refused[reason] += 1
        if connection.transport is not None:
            connection.transport.abort()
