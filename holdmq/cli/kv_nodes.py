"""Connections of `holdmq kv` to the key-value engine's servers: to one, or to each master of a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import redis
from redis.crc import key_slot

from holdmq.config.kv import KvSection
from holdmq.errors import StorageError

SLOTS: Final = 16_384


class KvNode(NamedTuple):
    """A server that has keys: the only one, or a master of a cluster."""

    name: str
    """Host and port, as a cluster tells them to its clients."""
    client: redis.Redis
    slots: int
    """How many it has: all, when there is no cluster."""


class KvNodes:
    """All servers that have keys, as they were when this was opened."""

    def __init__(self, nodes: list[KvNode], by_slot: dict[range, KvNode], is_cluster: bool) -> None:
        self.nodes = nodes
        self.is_cluster = is_cluster
        self._by_slot = by_slot

    def slot_of(self, key: str) -> int:
        """The slot of a key; servers without a cluster only do not use it."""
        slot: int = key_slot(key.encode())
        return slot

    def node_of(self, key: str) -> KvNode:
        """The server that has a key. Raises StorageError when the cluster has none for it."""
        slot = self.slot_of(key)
        for slots, node in self._by_slot.items():
            if slot in slots:
                return node
        raise StorageError(
            f"no master has slot {slot}", operation="use", path=key,
            hint="the cluster is not whole: CLUSTER INFO at one of its nodes says what is missing",
        )  # fmt: skip


@contextmanager
def connected(settings: KvSection) -> Iterator[KvNodes]:
    """Connect to what `storage.kv.url` names, for as long as the block runs; blocking.

    Raises ConfigError without an address, StorageError when nobody answers, or a server does not do as told.
    """
    servers = settings.servers()
    options: dict[str, Any] = {
        "username": servers.user or None,
        "password": servers.password or None,
        "socket_timeout": settings.timeout_ms / 1000,
        "socket_connect_timeout": settings.timeout_ms / 1000,
        "protocol": 2,
        "client_name": "holdmq-cli",
    }
    if servers.tls:
        options |= {"ssl": True, "ssl_ca_certs": settings.ca_file or None}
    opened: list[redis.Redis] = []

    def client(host: str, port: int) -> redis.Redis:
        opened.append(redis.Redis(host=host, port=port, **options))
        return opened[-1]

    try:
        yield _nodes([client(*place) for place in servers.hosts], servers.hosts, client)
    except redis.AuthenticationError as error:
        raise StorageError(
            str(error), operation="use", path=servers.where, hint="storage.kv.url has user and password"
        ) from error
    except redis.RedisError as error:
        raise StorageError(
            str(error) or type(error).__name__, operation="use", path=servers.where,
            hint="is the server up, and does storage.kv.url name it?",
        ) from error  # fmt: skip
    finally:
        for one in opened:
            one.close()


def _nodes(seeds: list[redis.Redis], places: tuple[tuple[str, int], ...], client: Any) -> KvNodes:
    """Ask the first seed that answers who has which slots."""
    for i, seed in enumerate(seeds):
        try:
            is_cluster = bool(seed.info("cluster")["cluster_enabled"])
            shares = _shares(seed) if is_cluster else []
        except redis.ConnectionError:
            if i + 1 == len(seeds):
                raise
            continue
        break
    host, port = places[i]
    if not is_cluster:
        alone = KvNode(f"{host}:{port}", seed, SLOTS)
        return KvNodes([alone], {range(SLOTS): alone}, False)
    by_place: dict[tuple[str, int], list[range]] = {}
    for first, last, (name, number, *_), *_ in shares:
        # A node that knows no name of its own means the address that it was asked at.
        place = ((name or b"").decode() or host, number)
        by_place.setdefault(place, []).append(range(first, last + 1))
    nodes = []
    by_slot: dict[range, KvNode] = {}
    for place, ranges in sorted(by_place.items()):
        node = KvNode(f"{place[0]}:{place[1]}", client(*place), sum(map(len, ranges)))
        nodes.append(node)
        by_slot |= dict.fromkeys(ranges, node)
    return KvNodes(nodes, by_slot, True)


def _shares(seed: Any) -> list[Any]:
    """Ask for first slot, last slot, master and replicas of each range."""
    found: list[Any] = seed.execute_command("CLUSTER SLOTS")
    return found
