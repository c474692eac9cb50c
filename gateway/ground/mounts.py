"""Tenants' mounts: what stands before the names of a tenant's clients here, and how it is taken off.

A client says topics, filters and its id in its tenant's words. From CONNECT on all of it is named below
`$%TENANT/` (holdmq.names.tenants), which no other client can say, and no other client's filter matches::

    client id  meter-1              ->  $%acme/meter-1
    topic      orders/42            ->  $%acme/orders/42
    filter     $share/g/orders/#    ->  $share/g/$%acme/orders/#

Packets to clients have the tenant's words again (`said_topic`). Sans-IO.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from gateway.ground.entries import TopicEntry
from holdmq.mqtt import CheckedTopics
from holdmq.mqtt.filters import SHARE_PREFIX
from holdmq.mqtt.topics import TOPICS_CACHED_MAX
from holdmq.names.tenants import MOUNT, mount_of, split_mount

_MOUNT: Final = MOUNT.encode()

MOUNTS_MAX: Final = 10_000
"""Tenants remembered by a worker: who says whose clients are may name any."""

MakeEntry = Callable[[bytes, str], TopicEntry]
"""(topic name as a client says it, the mount of its tenant) → its entry."""


class TenantMount:
    """The mount of one tenant in a worker. `prefix` stands before its names, `topics` are those it says.

    `is_of_file`: the gateway's file says whose the clients here are, and may say otherwise later.
    """

    __slots__ = ("is_of_file", "prefix", "tenant", "topics")

    def __init__(
        self, tenant: str, is_of_file: bool, create: Callable[[bytes], TopicEntry], topics_max: int
    ) -> None:
        self.tenant = tenant
        self.prefix = mount_of(tenant)
        self.is_of_file = is_of_file
        self.topics: CheckedTopics[TopicEntry] = CheckedTopics(create, topics_max)


class TenantMounts:
    """The mounts of a worker, each made when it is first needed; `topics` are those of nobody's clients.

    A tenant has a table of topics of its own, so that no name of one client can mean another's entry. All
    together have at most `topics_max` entries that were made since they were last forgotten.
    """

    def __init__(self, make_entry: MakeEntry, topics_max: int = TOPICS_CACHED_MAX) -> None:
        self.topics: CheckedTopics[TopicEntry] = CheckedTopics(partial(_of_nobody, make_entry), topics_max)
        self._make_entry = make_entry
        self._topics_max = topics_max
        self._made = 0
        self._mounts: dict[tuple[str, bool], TenantMount] = {}

    def of(self, tenant: str, is_of_file: bool = False) -> TenantMount:
        """The mount of a tenant, whose name is valid."""
        key = (tenant, is_of_file)
        mount = self._mounts.get(key)
        if mount is None:
            if len(self._mounts) >= MOUNTS_MAX:
                self._mounts.clear()  # who is connected keeps his
            create = partial(self._create, mount_of(tenant))
            mount = self._mounts[key] = TenantMount(tenant, is_of_file, create, self._topics_max)
        return mount

    def entry(self, mqtt_topic: str) -> TopicEntry:
        """The entry of a topic as HoldMQ names it, with its mount. Raises MqttError for what is none."""
        tenant, inner = split_mount(mqtt_topic)
        topics = self.of(tenant).topics if tenant else self.topics
        return topics.admit(inner.encode())

    def _create(self, prefix: str, raw: bytes) -> TopicEntry:
        self._made += 1
        if self._made > self._topics_max:
            self._made = 1
            for mount in self._mounts.values():
                mount.topics.clear()
        return self._make_entry(raw, prefix)


def mounted_filter(prefix: str, topic_filter: str) -> str:
    """What a client's filter is inside HoldMQ; the name of a share stays in front."""
    if topic_filter.startswith(SHARE_PREFIX):
        name, _, inner = topic_filter[len(SHARE_PREFIX) :].partition("/")
        return f"{SHARE_PREFIX}{name}/{prefix}{inner}"
    return prefix + topic_filter


def said_topic(mqtt_topic: bytes) -> bytes:
    """How the clients that get a topic call it: without the mount of their tenant."""
    if not mqtt_topic.startswith(_MOUNT):
        return mqtt_topic
    return mqtt_topic.partition(b"/")[2]


def within_mount(mount: TenantMount | None, narrow: str) -> str | None:
    """How a client calls a filter (without `$share/<name>/`); None = it is not among what it may name.

    A tenant's clients have nothing that begins with `$`: neither `$SYS`, which is the gateway's, nor a mount.
    """
    if mount is None:
        return None if narrow.startswith(MOUNT) else narrow
    tenant, inner = split_mount(narrow)
    return None if tenant != mount.tenant or not inner or inner.startswith("$") else inner


def _of_nobody(make_entry: MakeEntry, raw: bytes) -> TopicEntry:
    return make_entry(raw, "")
