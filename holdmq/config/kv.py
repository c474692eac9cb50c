"""The section ``[storage.kv]``: where the servers of the key-value engine are, and how long they may take."""

from __future__ import annotations

import re
from typing import Final, NamedTuple
from urllib.parse import unquote

from pydantic import Field, SecretStr, ValidationInfo, field_validator

from holdmq.config.section import Section
from holdmq.errors import ConfigError

KV_PORT: Final = 6379
"""Port of a Redis or Valkey whose address names none."""

_PLACE: Final = re.compile(
    r"(?:(?P<name>[A-Za-z0-9_.-]+)|\[(?P<address>[0-9A-Fa-f:.]+)\])(?::(?P<port>\d{1,5}))?"
)
_TLS_SCHEMES: Final = ("rediss", "valkeys")
_FORM: Final = "redis://user:password@host:6379,host2:6379/ (rediss:// for TLS)"


class KvServers(NamedTuple):
    """What ``storage.kv.url`` says; several hosts are the seeds of one cluster."""

    hosts: tuple[tuple[str, int], ...]
    """One or more, each with its port."""
    user: str
    """Empty for the default user."""
    password: str
    """Empty when none is to be sent."""
    tls: bool

    @property
    def where(self) -> str:
        """The hosts, for people: without the password."""
        return ", ".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)


class KvSection(Section):
    """The key-value engine: a Valkey or Redis, one server or a cluster."""

    url: SecretStr | None = Field(
        None,
        description=f"Where the servers are, as {_FORM}; several hosts are seeds of one cluster. Unset only "
        "for holdmq up, which starts a server of its own then. A secret for the password in it: better in "
        "the file or the environment than in --set.",
    )
    prefix: str = Field(
        "holdmq",
        pattern=r"^[A-Za-z0-9_.-]{1,32}$",
        description="Beginning of every key, so that installations can share servers: give each its own.",
    )
    min_replicas: int = Field(
        0,
        ge=0,
        le=5,
        description="Replicas that must have a batch before it is confirmed; 0 = the master alone, as a "
        "single server has none. It counts copies: a failover can still promote a replica that lacks them.",
    )
    replica_timeout_ms: int = Field(
        1000,
        ge=1,
        le=60_000,
        description="How long min_replicas are waited for, then the batch is refused and sent again: a "
        "second is many round trips, and less than producers wait.",
    )
    lease_ms: int = Field(
        9000,
        ge=1000,
        le=60_000,
        description="How long a silent broker owns its keys, by the server's clock: three renewals, and less "
        "than clients wait for another broker of the same name.",
    )
    takeover: bool = Field(
        True,
        description="Take over what a silent broker kept, until it is back; brokers of one prefix do so for "
        "each other.",
    )
    timeout_ms: int = Field(
        5000,
        ge=100,
        le=60_000,
        description="How long a server may be silent before the connection is made anew: longer than a "
        "busy server pauses, shorter than the lease.",
    )
    ca_file: str = Field(
        "",
        description="PEM file of the authorities that sign the servers' certificates; empty = the system's.",
    )

    @field_validator("url")
    @classmethod
    def _names_servers(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            kv_servers(value.get_secret_value())
        return value

    @field_validator("ca_file")
    @classmethod
    def _is_of_use(cls, value: str, info: ValidationInfo) -> str:
        url = info.data.get("url")
        if value and url is not None and not kv_servers(url.get_secret_value()).tls:
            raise ValueError("it is for TLS, and storage.kv.url begins with redis://: write rediss://")
        return value

    def servers(self) -> KvServers:
        """Return where the servers are; raises ConfigError when `url` is unset."""
        if self.url is None:
            raise ConfigError(
                f"storage.kv.url does not say where the servers are: set it, as {_FORM}; the address of a "
                "server that holdmq up started is in its data directory, in valkey/url"
            )
        return kv_servers(self.url.get_secret_value())


def kv_servers(url: str) -> KvServers:
    """Return what `url` says; raises ValueError with a sentence that does not repeat it, for the password."""
    # By hand: urlsplit knows one host.
    scheme, colon, rest = url.partition("://")
    authority, _, path = rest.partition("/")
    if scheme not in ("redis", "valkey", *_TLS_SCHEMES) or not colon:
        raise ValueError(f"it is no address of the form {_FORM}")
    if path not in ("", "0"):
        raise ValueError("nothing but a slash follows the hosts: a cluster has one database, number 0")
    credentials, _, places = authority.rpartition("@")
    user, _, password = credentials.partition(":")
    hosts = tuple(map(_host_and_port, places.split(",")))
    return KvServers(hosts, unquote(user), unquote(password), scheme in _TLS_SCHEMES)


def _host_and_port(place: str) -> tuple[str, int]:
    found = _PLACE.fullmatch(place)
    if found is None:
        raise ValueError("a host is no host:port; an IPv6 address is written in [ ]")
    port = int(found["port"] or KV_PORT)
    if not 0 < port < 65_536:
        raise ValueError(f"port {port} is none: 1 to 65535")
    return found["name"] or found["address"], port
