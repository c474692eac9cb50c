"""Names: MQTT topic <-> (log topic, tag), what may be a name, filter terms, and the queue of a key.

An MQTT topic's first level is the log topic, the rest is the tag::

    devices/42/temp   <->  devices     42/temp
    devices           <->  devices     no tag
    devices/          <->  devices     the empty tag
    /a                <->  |           a            an empty first level is the topic |
    a.b/c             <->  a|2Eb       c            bytes outside [A-Za-z0-9_-] are | and two digits
    (any of the above)<->  mqtt-other  a.b/c        what gets no topic of its own: tag = whole MQTT topic
    (any of the above)<->  mqtt-tree-x a.b/c        what a gateway's rules send there: the same
    $%acme/a/b        <->  acme%a      b            of a tenant (holdmq.names.tenants): all of these, apart

Digits of an escape are 0-9 A-F, and only what must be escaped is: one MQTT topic has one name.
Pure functions; the faults they return are sentences without a subject's prefix, for a caller to
raise with its own class and code.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

import xxhash

from holdmq.mqtt.filters import matches
from holdmq.names.tenants import MOUNT, in_tenant, mount_of, split_mount, split_tenant, tenant_fault
from holdmq.record.codec import prefix_hash, tag_hash
from holdmq.wire.headers import FilterTerm, TermKind

TOPIC_BYTES_MAX: Final = 127
"""The longest topic name: its length is one byte of a record, and the sign bit stays clear."""
GROUP_BYTES_MAX: Final = 120
"""The longest group name: `%RETRY%` and a group fit a topic name."""
TAG_BYTES_MAX: Final = 32 << 10
"""The longest tag: what a record's properties give to tag and user together."""
OTHER_TOPIC: Final = "mqtt-other"
"""Holds MQTT messages whose first level has no topic of its own; the tag is the whole MQTT topic."""
OTHER_KEY_LEVELS: Final = 2
"""`key_levels` of OTHER_TOPIC: first level and device, as in other topics topic and device."""
TREE_PREFIX: Final = "mqtt-tree-"
"""Topics of these names are as OTHER_TOPIC: gateways' routing rules (gateway.routes) store trees there."""
TEMPORARY_SUFFIX: Final = "#tmp"
PRODUCED_TOPIC: Final = "%PRODUCED%"
"""What brokers note of their producers: these records are no messages, and nobody is shown them."""

_EMPTY_LEVEL: Final = "|"
_PLAIN: Final = re.compile(r"[A-Za-z0-9_-]+\Z")
_TOPIC: Final = re.compile(r"(?:\||(?:[A-Za-z0-9_-]|\|[0-9A-F]{2})+)\Z")
_SYSTEM: Final = re.compile(r"%[A-Za-z0-9_|%-]+\Z")
_ESCAPE: Final = re.compile(rb"\|([0-9A-F]{2})")
_ESCAPED: Final = re.compile(rb"[^A-Za-z0-9_-]")
_IN_NO_TAG: Final = re.compile(rb"[+#\0]")
_KEEP: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_IN_NO_LEVEL: Final = frozenset(b"+#/\0")
_QUEUE_ID_BYTES: Final = 4


class TopicTag(NamedTuple):
    """A log topic and a tag; None = no tag, which is not the empty tag."""

    topic: str
    tag: str | None


# MQTT topic <-> log topic and tag


def topic_of_level(level: str) -> str:
    """The log topic of an MQTT topic's first level, however long; see `split_mqtt_topic`."""
    if _PLAIN.match(level):
        return level
    if not level:
        return _EMPTY_LEVEL
    return _ESCAPED.sub(lambda found: b"|%02X" % found[0][0], level.encode()).decode("ascii")


def level_of_topic(topic: str) -> str | None:
    """The first level of a log topic's MQTT topics; None if MQTT cannot see this topic.

    System and temporary topics, those whose tags are whole MQTT topics, and what is no topic
    name have no first level. The empty level is "". A tenant's is mounted: `$%acme/orders`; one that
    begins with `$` has none, and neither has a topic of nobody's whose level would be a tenant's mount.
    """
    if is_whole(topic):
        return None
    if _PLAIN.match(topic):
        return topic
    tenant, own = split_tenant(topic)
    if tenant:
        level = None if topic_fault(topic) is not None else level_of_topic(own)
        # Below the mount no wildcard would stop at a `$`, as [MQTT-4.7.2-1] wants it.
        return None if level is None or level.startswith("$") else mount_of(tenant) + level
    if topic == _EMPTY_LEVEL:
        return ""
    if topic_fault(topic) is not None or topic.endswith(TEMPORARY_SUFFIX):
        return None
    level = _unescape(topic).decode()
    return None if level.startswith(MOUNT) else level


def split_mqtt_topic(mqtt_topic: str) -> TopicTag:
    """The log topic and tag of a valid MQTT topic name.

    First levels whose name would be longer than TOPIC_BYTES_MAX, or that of a topic whose tags
    are whole MQTT topics, go to OTHER_TOPIC. Whether
    the topic exists or may be created is the caller's to know: if not, use `other_topic`.
    """
    tenant, inner = split_mount(mqtt_topic)
    level, slash, rest = inner.partition("/")
    own = topic_of_level(level)
    topic = in_tenant(tenant, own)
    if is_whole(own) or len(topic) > TOPIC_BYTES_MAX:
        return other_topic(mqtt_topic)
    return TopicTag(topic, rest if slash else None)


def other_topic(mqtt_topic: str) -> TopicTag:
    """Where an MQTT topic goes whose first level gets no log topic of its own."""
    tenant, inner = split_mount(mqtt_topic)
    return TopicTag(in_tenant(tenant, OTHER_TOPIC), inner)


def join_mqtt_topic(topic: str, tag: str | None) -> str | None:
    """The MQTT topic of a log topic and tag; None if MQTT cannot see it.

    That is so for system and temporary topics, for OTHER_TOPIC and its like without a tag, and for the
    topic `|` without a tag (an MQTT topic has at least one character [MQTT-4.7.3-1]). A tag there that
    begins with `$` in a tenant, or as a tenant's mount, is none's: see `level_of_topic`.
    """
    if is_whole(topic):
        tenant = split_tenant(topic)[0]
        if not tag or tag.startswith("$" if tenant else MOUNT):
            return None
        return mount_of(tenant) + tag
    level = level_of_topic(topic)
    if level is None:
        return None
    if tag is None:
        return level if split_mount(level).inner else None
    return f"{level}/{tag}"


def _unescape(topic: str) -> bytes:
    return _ESCAPE.sub(lambda found: bytes((int(found[1], 16),)), topic.encode("ascii"))


# Names


def is_system_topic(topic: str) -> bool:
    """Whether only the calls meant for it may name this topic; MQTT can never write one."""
    return topic.startswith("%")


def is_other(topic: str) -> bool:
    """Whether a log topic is OTHER_TOPIC, or that of a tenant."""
    return split_tenant(topic)[1] == OTHER_TOPIC


def is_whole(topic: str) -> bool:
    """Whether the tags of a log topic are whole MQTT topics: it is OTHER_TOPIC, or of a routing rule."""
    own = split_tenant(topic)[1]
    return own == OTHER_TOPIC or own.startswith(TREE_PREFIX)


def is_temporary(name: str) -> bool:
    """Whether a topic or group of this name lives in memory only."""
    return name.endswith(TEMPORARY_SUFFIX)


def topic_fault(name: str) -> str | None:
    """Why a client may not use this topic name; None if it may.

    1 to TOPIC_BYTES_MAX of `[A-Za-z0-9_-]` and `|XX` escapes, then perhaps `#tmp`; or `|`. Before it a
    tenant and `%`, perhaps: whose it is.
    """
    if len(name) <= TOPIC_BYTES_MAX and _PLAIN.match(name):
        return None
    if not name:
        return "a topic name is empty"
    if len(name.encode(errors="replace")) > TOPIC_BYTES_MAX:
        return f"topic name {_short(name)} is longer than {TOPIC_BYTES_MAX} bytes"
    if is_system_topic(name):
        return f"topic {_short(name)} is a system topic, which clients may not name"
    tenant, own = split_tenant(name)
    fault = tenant_fault(tenant) if tenant else None
    if fault is not None:
        return f"topic name {_short(name)}: {fault}"
    stem = own.removesuffix(TEMPORARY_SUFFIX)
    if not _TOPIC.match(stem):
        return (
            f"topic name {_short(name)} must be of letters, digits, _ and - "
            "(other bytes as | and two digits 0-9 A-F)"
        )
    return _escape_fault(stem)


def system_topic_fault(name: str) -> str | None:
    """Why this is no system topic's name (`%SESSION`, `%RETRY%group`, …); None if it is one."""
    if not _SYSTEM.match(name) or len(name) > TOPIC_BYTES_MAX:
        return (
            f"system topic name {_short(name)} must be % and then 1 to {TOPIC_BYTES_MAX - 1} "
            "of letters, digits, _ - | %"
        )
    return None


def group_fault(name: str) -> str | None:
    """Why a client may not use this group name; None if it may.

    1 to GROUP_BYTES_MAX of `[A-Za-z0-9_-]`, then perhaps `#tmp`; before it a tenant and `%`, perhaps.
    """
    if len(name) > GROUP_BYTES_MAX:
        return f"group name {_short(name)} is longer than {GROUP_BYTES_MAX} bytes"
    tenant, own = split_tenant(name)
    fault = tenant_fault(tenant) if tenant else None
    if fault is not None:
        return f"group name {_short(name)}: {fault}"
    if not _PLAIN.match(own.removesuffix(TEMPORARY_SUFFIX)):
        return f"group name {_short(name)} must be of letters, digits, _ and -"
    return None


def tag_fault(tag: str | bytes) -> str | None:
    """Why no MQTT topic could have this tag (`+`, `#`, U+0000, no UTF-8, too long); None if one could."""
    if isinstance(tag, str):
        try:
            tag = tag.encode()
        except UnicodeEncodeError:
            return "a tag is no UTF-8 text"
    if len(tag) > TAG_BYTES_MAX:
        return f"a tag of {len(tag)} bytes; the limit is {TAG_BYTES_MAX}"
    if _IN_NO_TAG.search(tag) is not None:  # `in` with bytes raises and catches an error inside
        return (
            f"tag {_short(tag.decode(errors='replace'))} has one of + # U+0000, which no MQTT topic can have"
        )
    if not tag.isascii():
        try:
            tag.decode()
        except UnicodeDecodeError:
            return "a tag is no UTF-8 text"
    return None


def _escape_fault(stem: str) -> str | None:
    if stem == _EMPTY_LEVEL:
        return None
    for found in _ESCAPE.finditer(stem.encode("ascii")):
        byte = int(found[1], 16)
        if byte in _KEEP:
            return f"topic name {_short(stem)} escapes {chr(byte)!r}, which stands for itself"
        if byte in _IN_NO_LEVEL:
            return f"topic name {_short(stem)} escapes {chr(byte)!r}, which no MQTT level can have"
    try:
        _unescape(stem).decode()
    except UnicodeDecodeError:
        return f"topic name {_short(stem)} has escapes that are no UTF-8"
    return None


def _short(text: str) -> str:
    return repr(text if len(text) <= 64 else text[:61] + "...")


# Filters


def topic_of_filter(mqtt_filter: str) -> str | None:
    """The log topic that a filter's first level names; None for a wildcard or one in OTHER_TOPIC only."""
    tenant, inner = split_mount(mqtt_filter)
    level = inner.partition("/")[0]
    if level in ("+", "#"):
        return None
    topic = in_tenant(tenant, topic_of_level(level))
    return None if is_whole(topic) or len(topic) > TOPIC_BYTES_MAX else topic


def filter_terms(
    mqtt_filter: str, key_levels: int = 1, trees: Sequence[tuple[str, int]] = ()
) -> list[FilterTerm]:
    """The terms that let every message of an MQTT filter pass: a broker may send more, never less.

    `mqtt_filter` is valid and without `$share/…/`; `key_levels` is that of the topic
    `topic_of_filter` names (1 while it does not exist: ask again when it is created with
    another). OTHER_TOPIC is read wherever it could match, and so are `trees`: topics of routing
    rules, with their `key_levels`. The reader must test again. Terms of a tenant's filter name its
    topics alone, `acme%` standing for all of them.

    A filter whose first `key_levels` tag levels are literal becomes a PREFIX term, also when
    wildcards follow: one look-up in a set of hashes serves any number of such filters, and
    a device's messages are few.
    """
    tenant, inner = split_mount(mqtt_filter)
    every = in_tenant(tenant, "")
    level, slash, rest = inner.partition("/")
    if level == "#" or (level == "+" and rest == "#"):
        return [FilterTerm(TermKind.TOPIC, every, 0, "")]
    others = [tag_filter_term(in_tenant(tenant, OTHER_TOPIC), inner, OTHER_KEY_LEVELS)]
    if not tenant:
        others += [tag_filter_term(tree, inner, levels) for tree, levels in trees]
    if level == "+":
        if not slash:
            return [tag_term(every, None), *others]
        # Across topics of unknown key_levels no hash is common.
        return [FilterTerm(TermKind.MQTT, every, 0, rest), *others]
    topic = topic_of_filter(mqtt_filter)
    if topic is None:
        return others
    if not slash:
        return [tag_term(topic, None, key_levels), *others]
    return [tag_filter_term(topic, rest, key_levels), *others]


def tag_term(topic: str, tag: str | None, key_levels: int = 1) -> FilterTerm:
    """The term for exactly this tag; None = messages without a tag (in any topic, hash 0)."""
    return FilterTerm(TermKind.TAG, topic, tag_hash(None if tag is None else tag.encode(), key_levels), "")


def tag_filter_term(topic: str, tag_filter: str, key_levels: int = 1) -> FilterTerm:
    """The cheapest term that lets every tag of an MQTT filter over the tag pass (see `filter_terms`)."""
    if tag_filter == "#":
        return FilterTerm(TermKind.TOPIC, topic, 0, "")
    if "+" not in tag_filter and "#" not in tag_filter:
        return tag_term(topic, tag_filter, key_levels)
    levels = tag_filter.split("/")
    head = levels[:key_levels]
    if len(head) == key_levels and "+" not in head and "#" not in head:
        return FilterTerm(TermKind.PREFIX, topic, prefix_hash("/".join(head).encode(), key_levels), "")
    return FilterTerm(TermKind.MQTT, topic, 0, tag_filter)


def tag_matches(tag_filter: str, tag: str | None) -> bool:
    """Whether an MQTT filter over the tag matches: no tag passes `#` only, the empty tag is a level.

    A tag that begins with `$` is nothing special: the `$` rule is about whole MQTT topics.
    """
    if tag is None:
        return tag_filter == "#"
    return matches(f"t/{tag_filter}", f"t/{tag}")


# The queue of a key


def rank_queues(key: bytes | str, queues: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """All (broker name, queue id) of `queues`, the key's own first: rendezvous hashing.

    The weight of a queue is xxh3-64 (seed 0) of these bytes; equal weights rank by name and id::

        | key | broker name, UTF-8 | queue id, 4, big-endian |

    Every party that chooses queues must be given the same set, absent brokers' queues
    included. A text key is hashed as UTF-8. Adding a queue moves only keys that it wins.
    """
    raw = key.encode() if isinstance(key, str) else key
    weighed = [
        (
            xxhash.xxh3_64_intdigest(raw + name.encode() + queue_id.to_bytes(_QUEUE_ID_BYTES, "big")),
            name,
            queue_id,
        )
        for name, queue_id in queues
    ]
    weighed.sort(reverse=True)
    return [(name, queue_id) for _, name, queue_id in weighed]


def queue_of_key(key: bytes | str, queues: Sequence[tuple[str, int]]) -> tuple[str, int]:
    """The (broker name, queue id) that a key belongs to; `queues` must not be empty. See `rank_queues`."""
    raw = key.encode() if isinstance(key, str) else key
    return max(
        (
            xxhash.xxh3_64_intdigest(raw + name.encode() + queue_id.to_bytes(_QUEUE_ID_BYTES, "big")),
            (name, queue_id),
        )
        for name, queue_id in queues
    )[1]
