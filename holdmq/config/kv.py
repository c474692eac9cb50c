"""The section ``[storage.kv]``: where the servers of the key-value engine are, and how long they may take."""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

from pydantic import Field, SecretStr, ValidationInfo, field_validator

from holdmq.config.section import Section
from holdmq.errors import ConfigError

KV_PORT: Final = 6379
"""Port of a Redis or Valkey whose address names none."""

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
                'storage.engine is "kv", and storage.kv.url does not say where its servers are: set it, as '
                f"{_FORM}; only holdmq up starts a server of its own"
            )
        return kv_servers(self.url.get_secret_value())


def kv_servers(url: str) -> KvServers:
    """Return what `url` says; raises ValueError with a sentence that does not repeat it, for the password."""
    parts = urlsplit(url)
    if parts.scheme not in ("redis", "rediss") or not parts.netloc:
        raise ValueError(f"it is no address of the form {_FORM}")
    if parts.path not in ("", "/", "/0") or parts.query or parts.fragment:
        raise ValueError("nothing but a slash follows the hosts: a cluster has one database, number 0")
    credentials, _, places = parts.netloc.rpartition("@")
    user, _, password = credentials.partition(":")
    hosts = tuple(_host_and_port(place) for place in places.split(","))
    return KvServers(hosts, unquote(user), unquote(password), parts.scheme == "rediss")


def _host_and_port(place: str) -> tuple[str, int]:
    host, colon, port = place.rpartition(":")
    if not colon or place.endswith("]"):
        host, port = place, str(KV_PORT)
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    if not host or (":" in host) is not bracketed or not (port.isascii() and port.isdigit()):
        raise ValueError("a host is no host:port, or an IPv6 address without [ ]")
    if not 0 < int(port) < 65_536:
        raise ValueError(f"port {port} is none: 1 to 65535")
    return host, int(port)
