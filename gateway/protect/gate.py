"""Who may come in: connections of a worker and of an address, connect rate, overload, bans.

A client that may not is told so once its CONNECT came, for only then it is known how. Far beyond a bound even
that costs too much: then its connection is closed at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.edge.core.unauthenticated import UnauthenticatedBytes
from gateway.ground.addresses import (
    AddressCounts,
    address_key,
    shown_key,
)
from gateway.ground.rates import Bucket
from gateway.protect.core.flapping import (
    Ban,
    Bans,
    Flapping,
)
from gateway.protect.core.overload import MEMORY
from holdmq.config.model import GatewaySection
from holdmq.mqtt import MqttError, ReasonCode
from holdmq.service import telemetry

if TYPE_CHECKING:
    from gateway.edge.connection import Shell
    from gateway.session.session import Session
    from gateway.worker.worker import Worker

CONNECTIONS_OVER: Final = 1000
"""Connections beyond connections_max that still get a CONNACK with the reason; more are just closed."""
ADDRESS_OVER: Final = 100
"""The same for connections_per_address_max."""

log = telemetry.get_logger()


class AdmissionGate:
    """Looks at each connection when it comes, when its address is known, and when its CONNECT is right."""

    def __init__(self, worker: Worker, section: GatewaySection) -> None:
        self._worker = worker
        self._section = section
        self._rate = Bucket(section.connect_rate_max, worker.now()) if section.connect_rate_max else None
        self._addresses = AddressCounts() if section.connections_per_address_max else None
        self._flapping: Flapping | None = None
        if section.flapping_connects_max:
            self._flapping = Flapping(section.flapping_connects_max, section.flapping_window_s)
        self.bans = Bans()
        self.unauthenticated: UnauthenticatedBytes[Shell] = UnauthenticatedBytes(
            section.unauthenticated_max_bytes
        )

    def opened(self, shell: Shell) -> None:
        """A connection was accepted, and is counted."""
        worker, counters = self._worker, self._worker.counters
        over = counters.connections - counters.connections_max
        if worker.is_draining:
            self._refuse_draining(shell)
        elif over > 0:
            self._refuse(
                shell, ReasonCode.SERVER_BUSY, "this gateway worker has gateway.connections_max connections"
            )
            if over > CONNECTIONS_OVER:
                self._cut(shell, "connections_max")
        elif worker.overload.level:
            self._refuse_overloaded(shell)
        elif self._rate is not None and not self._rate.try_take(worker.now()):
            bound = self._section.connect_rate_max
            sentence = f"more than gateway.connect_rate_max ({bound}) connections in a second"
            self._refuse(shell, ReasonCode.CONNECTION_RATE_EXCEEDED, sentence)
        if shell.is_identified:
            self.identified(shell)

    def identified(self, shell: Shell) -> None:
        """The client's address is known."""
        if self._addresses is None:
            return
        bound = self._section.connections_per_address_max
        over = self._addresses.opened(address_key(shell.session.born_host)) - bound
        if over > 0:
            self._refuse(
                shell,
                ReasonCode.QUOTA_EXCEEDED,
                f"this address has gateway.connections_per_address_max ({bound}) connections",
            )
            if over > ADDRESS_OVER:
                self._cut(shell, "connections_per_address_max")

    def closed(self, shell: Shell) -> None:
        """A connection is gone."""
        if self._addresses is not None and shell.is_identified:
            self._addresses.closed(address_key(shell.session.born_host))

    def holds(self, shell: Shell, change_bytes: int) -> None:
        """A connection whose client is not admitted holds more, or less; who holds most may be cut off."""
        unauthenticated = self.unauthenticated
        unauthenticated.add(shell, change_bytes)
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
        self._worker.counters.unauthenticated_bytes = unauthenticated.total

    def is_known(self, shell: Shell) -> None:
        """A client is admitted, or its connection over: what it holds is not counted any more."""
        self.unauthenticated.forget(shell)
        self._worker.counters.unauthenticated_bytes = self.unauthenticated.total

    def admits(self, session: Session, principal: str) -> bool:
        """Whether a client whose CONNECT is right is not banned; else it is told so, and its session over."""
        if self._flapping is None and not self.bans:
            return True
        key, now = (principal, address_key(session.born_host)), self._worker.now()
        ban = self.bans.of(key, now)
        if ban is None and self._flapping is not None:
            connects = self._flapping.connected(key, now)
            if connects:
                ban = Ban(key, now + self._section.flapping_ban_s, connects)
                self._ban(ban)
        if ban is None:
            return True
        sentence = f"banned for another {ban.until - now:.0f} s, as it connected too often"
        if session.connection is not None:
            session.connection.admitted(session.refuse(MqttError(ReasonCode.BANNED, sentence)))
        return False

    def lift(self, principal: str | None) -> None:
        """Lift the bans of a principal, or all (None); its connects are counted anew."""
        self.bans.lift(principal)
        if self._flapping is not None:
            self._flapping.forget(principal)

    def each_second(self, now: float) -> None:
        """Forget what is over."""
        counters = self._worker.counters
        if self.bans:
            self.bans.expire(now)
        if self._flapping is not None:
            self._flapping.expire(now)
        counters.bans = len(self.bans)
        counters.addresses = 0 if self._addresses is None else len(self._addresses)

    def _ban(self, ban: Ban) -> None:
        principal, address = ban.key
        self.bans.add(ban)
        self._worker.counters.bans_total += 1
        self._worker.reporting.banned(ban)
        log.warning(
            "a client that connects too often is banned",
            client=principal,
            address=shown_key(address),
            connects=ban.connects,
            window_s=self._section.flapping_window_s,
            ban_s=self._section.flapping_ban_s,
        )

    # Refusing

    def _refuse_draining(self, shell: Shell) -> None:
        if self._section.server_reference:
            self._refuse(shell, ReasonCode.USE_ANOTHER_SERVER, "this gateway shuts down")
        else:
            self._refuse(shell, ReasonCode.SERVER_BUSY, "this gateway shuts down")

    def _refuse_overloaded(self, shell: Shell) -> None:
        cause = self._worker.overload.cause
        code = ReasonCode.QUOTA_EXCEEDED if cause == MEMORY else ReasonCode.SERVER_BUSY
        self._worker.counters.overload_refused_total += 1
        self._refuse(shell, code, f"this gateway worker has too much to do ({cause})")
        if shell.listener.tls is not None:
            self._cut(shell, "overload")  # a handshake to say so costs ten times what a client does

    @staticmethod
    def _refuse(shell: Shell, code: ReasonCode, sentence: str) -> None:
        shell.session.refuse_with = MqttError(code, sentence)

    def _cut(self, shell: Shell, reason: str) -> None:
        self._worker.counters.refused[reason] += 1
        shell.listener.refused[reason] += 1
        if shell.transport is not None:
            shell.transport.abort()
