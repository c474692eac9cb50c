"""The ports of what ``holdmq up`` starts: that no two are the same, and that nobody else has one."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from typing import Any, TypeAlias

from holdmq.config.model import Config
from holdmq.errors import ConfigError, StartupError
from holdmq.service.process import listen_error

Addresses: TypeAlias = dict[str, tuple[str, int]]
"""Configuration key → (host, port); a key may be followed by " of …", whose it is."""


def addresses(config: Config, names: Iterable[str]) -> Addresses:
    """Return configuration key → (host, port) of what the services `names` listen on.

    The gateway's further listeners are not among them: it says itself what is wrong with one.
    """
    found = {}
    for name in names:
        section: Any = getattr(config, name)
        if getattr(section, "default_listener", hasattr(section, "port")):
            found[f"{name}.port"] = (section.bind, section.port)
        found[f"{name}.admin_port"] = (section.admin_bind, section.admin_port)
        if name == "broker" and config.replication.replicas:
            found["replication.port"] = (config.replication.bind, config.replication.port)
    return found


def refuse_conflicts(config: Config, names: list[str], more: Addresses | None = None) -> None:
    """Raise ConfigError when the services cannot run together on one machine with this configuration.

    `more` is what else will be listened on.
    """
    config.access.anonymous_allowed(config.gateway)
    for section in ("registry", "broker"):
        config.rpc_anonymous_allowed(section)
    config.alarms.check()
    if "console" in names:
        config.console.check_exposure()
    seen: dict[int, str] = {}
    ports = {key: port for key, (_, port) in (addresses(config, names) | (more or {})).items()}
    for listener in config.gateway.listeners:
        if listener.port is not None:
            ports[f"the port of the listener {listener.name!r}"] = listener.port
    for key, port in ports.items():
        if port == 0:
            raise ConfigError(
                f"{key} is 0; holdmq up needs a fixed port, as its processes must find each other"
            )
        if port in seen:
            raise ConfigError(f"{key} and {seen[port]} are both {port}; give each its own port")
        seen[port] = key


def require_free_ports(config: Config, names: list[str], more: Addresses | None = None) -> None:
    """Raise StartupError, which names port and key, when another process listens on one of the ports."""
    for whose, (host, port) in (addresses(config, names) | (more or {})).items():
        key = whose.partition(" ")[0]
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        except OSError as error:
            raise StartupError(
                f'"{host}" ({key.partition(".")[0]}) is no address: {error.strerror}'
            ) from error
        with socket.socket(family, kind, protocol) as probe:
            # As the servers do: connections of a past run that linger in TIME_WAIT are no obstacle.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(address)
                probe.listen(1)
            except OSError as error:
                raise listen_error(error, key, host, port) from error


def reachable(bind: str) -> str:
    """Return the address at which this machine reaches a listener on `bind`."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bind, bind)  # noqa: S104 # what is bound to elsewhere
