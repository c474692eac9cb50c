"""What a worker knows of a listener: whom it lets in, its TLS, its numbers; and fresh certificates."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Final

from gateway.edge.core.websocket import WebSocketRules, rules_of
from holdmq.config.listeners import ListenerSettings
from holdmq.config.model import GatewaySection
from holdmq.errors import ConfigError, HoldMQError
from holdmq.files.file_signature import Signature, changed, signature_of
from holdmq.rpc.tls import EXPIRES_SOON_S, ServerTls, TlsKeys
from holdmq.service import telemetry
from holdmq.service.host_rule import AllowedHosts, host_name_of

HANDSHAKES_MAX: Final = 2_000
"""TLS handshakes at a time in a worker's listener, some 60 KiB each; past it connections are closed."""
EXPIRY_SAID_EVERY_S: Final = 86_400.0

log = telemetry.get_logger()


class Listener:
    """A listener in one process; `tls`, `websocket` and `networks` are None for what it does not use.

    `hosts` are the names under which WebSocket clients may ask, beside those of the certificate and of the
    pages that may connect. The constructor reads the certificates (blocking), and raises ConfigError naming
    listener and file.
    """

    __slots__ = (
        "accepted_total",
        "connections",
        "handshakes",
        "hosts",
        "name",
        "networks",
        "packet_max_bytes",
        "refused",
        "settings",
        "tls",
        "tls_signature",
        "websocket",
    )

    def __init__(self, settings: ListenerSettings, packet_max_bytes: int, hosts: Iterable[str] = ()) -> None:
        self.settings = settings
        self.packet_max_bytes = packet_max_bytes
        self.hosts = tuple(hosts)
        self.name = settings.name
        self.tls: ServerTls | None = None
        self.tls_signature: Signature = ()
        """What the certificate files were when they were last read."""
        self.websocket: WebSocketRules | None = None
        self.networks: list[IPv4Network | IPv6Network] | None = None
        """Where proxies are; None = clients connect themselves."""
        self.connections = 0
        self.accepted_total = 0
        self.handshakes = 0
        """TLS handshakes under way."""
        self.refused: Counter[str] = Counter()
        if settings.uses_tls:
            self.tls, self.tls_signature = _tls_of(settings)
        self.renew_rules()
        if settings.proxy:
            self.networks = [ip_network(network) for network in settings.proxy_networks]

    @property
    def is_plain(self) -> bool:
        """Whether the socket carries MQTT and nothing else."""
        return self.tls is None and self.websocket is None and self.networks is None

    def renew_rules(self) -> None:
        """Make the rules of WebSocket for new connections, by the names of the certificate as it is now."""
        settings = self.settings
        if not settings.uses_websocket:
            return
        pages = filter(None, map(host_name_of, settings.ws_origins))
        certified = () if self.tls is None else self.tls.names
        hosts = AllowedHosts((*self.hosts, *pages, *certified))
        self.websocket = rules_of(settings.ws_path, settings.ws_origins, self.packet_max_bytes, hosts)

    def trusts(self, address: str) -> bool:
        """Whether a proxy may be at this address."""
        try:
            ip = ip_address(address)
        except ValueError:
            return False
        return any(ip in network for network in self.networks or ())

    def numbers(self) -> dict[str, object]:
        """What the parent exports; `certificate_expires_at` 0 = there is none."""
        return {
            "connections": self.connections,
            "accepted_total": self.accepted_total,
            "certificate_expires_at": 0.0 if self.tls is None else self.tls.expires_at,
            "refused": self.refused,
        }


def listeners_of(section: GatewaySection, hosts: Iterable[str] = ()) -> list[Listener]:
    """The listeners of a gateway (blocking) for WebSocket clients that ask for `hosts`.

    Raises ConfigError naming listener, file and what to do.
    """
    names = tuple(hosts)
    return [Listener(settings, section.packet_max_bytes, names) for settings in section.all_listeners()]


def _tls_of(settings: ListenerSettings) -> tuple[ServerTls, Signature]:
    of = f"of the listener {settings.name!r}"
    keys = TlsKeys(f"tls_cert {of}", f"tls_key {of}", f"tls_client_ca {of}")
    # The signature first: what changes while it is read is then read again.
    paths = (settings.tls_cert, settings.tls_key, settings.tls_client_ca)
    signature = signature_of(filter(None, paths))
    try:
        return ServerTls(*paths, settings.require_client_certificate, keys), signature
    except ConfigError as error:
        if settings.name in str(error):
            raise
        raise ConfigError(f"the listener {settings.name!r}: {error}") from error


class CertificateWatch:
    """Reads listeners' certificates again when their files change, or when told to.

    What cannot be used changes nothing, and is said once. New connections use what was read.
    """

    def __init__(self, listeners: Iterable[Listener], interval_s: float, worker: int) -> None:
        self._listeners = [listener for listener in listeners if listener.tls is not None]
        self._interval_s = interval_s
        self._worker = worker
        self._wake = asyncio.Event()
        self._failed: dict[str, Signature] = {}
        self._expiry_said = float("-inf")
        self.reloads_failed_total = 0

    def reload_soon(self) -> None:
        """Look at the files now (SIGHUP)."""
        self._wake.set()

    async def run(self) -> None:
        """Look at the files at intervals until cancelled; returns at once when there are none."""
        loop = asyncio.get_running_loop()
        is_asked = False
        while self._listeners:
            await loop.run_in_executor(None, self.look, is_asked)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._wake.wait()
            is_asked = self._wake.is_set()
            self._wake.clear()

    def look(self, is_asked: bool) -> None:
        """Read what changed (blocking); `is_asked`: also what was of no use when it was last seen."""
        for listener in self._listeners:
            tls = listener.tls
            assert tls is not None
            failed = () if is_asked else self._failed.get(listener.name, ())
            signature = changed(tls.paths, listener.tls_signature, failed)
            if signature is None:
                continue
            try:
                tls.reload()
            except (HoldMQError, OSError) as error:
                self._failed[listener.name] = signature
                self.reloads_failed_total += 1
                log.error(
                    "a changed certificate is of no use; what was read before stays in force",
                    listener=listener.name,
                    worker=self._worker,
                    reason=str(error),
                )
            else:
                listener.tls_signature = signature
                listener.renew_rules()
                log.info(
                    "certificates were read again; new connections use them",
                    listener=listener.name,
                    worker=self._worker,
                )
        self._warn_of_expiry()

    def _warn_of_expiry(self) -> None:
        if self._worker or time.monotonic() - self._expiry_said < EXPIRY_SAID_EVERY_S:
            return  # one of the workers says it, once a day
        for listener in self._listeners:
            assert listener.tls is not None
            left_s = listener.tls.expires_at - time.time()
            if left_s < EXPIRES_SOON_S:
                self._expiry_said = time.monotonic()
                log.warning(
                    "a certificate expires soon; renew it",
                    listener=listener.name,
                    file=listener.settings.tls_cert,
                    days_left=int(left_s // 86_400),
                )
