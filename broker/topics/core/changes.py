"""The rules by which topics come, change, grow, shrink and go. Pure: a topic in, a topic out.

::

    grow ──────────────► more queues for all (order: drained first); hidden ones are shown again
    hide_from_producers  write_queues fewer          order: those queues are drained
    hide_from_consumers  read_queues fewer           they are drained, nothing is on its way to them,
                                                     and old routes have had their time
    delete               deleting_to set             nobody sees them
    deleted              stored_queues fewer         the store has given them up durably

Every function raises RemoteError; TOPIC_IN_USE says which condition fails. `undrained(queue_id)` is the
reason why a queue may not go yet, None = it may. Source: broker.md, Topics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from broker.topics.core.table import (
    KEY_LEVELS_MAX,
    KIND_LOG,
    KIND_TEMPORARY,
    KINDS,
    NOT_DELETING,
    NOT_PAUSED,
    PAUSES_MAX,
    PERM_MAX,
    QUEUES_MAX,
    Topic,
    may_spread,
    spread_of,
    topic_of,
)
from holdmq.errors import Code, RemoteError
from holdmq.names.topics import is_system_topic, is_temporary, topic_fault
from holdmq.wire.headers import TopicCreateRequest
from holdmq.wire.topic_headers import FIRST_GROUPS, SPREAD_ALL, SPREAD_FIXED, SPREADS, TopicUpdateRequest

Undrained = Callable[[int], str | None]

_TAKEN_OVER: Final = ("perm", "key_levels", "retention_ms", "first_group", "first_reader")
"""What a broker takes over of a topic as it is elsewhere."""
REASONS_MAX: Final = 3
"""Queues named in one refusal: the operator sees where to begin."""


def check_name(name: str) -> None:
    """Raise TOPIC_INVALID for what no client may name."""
    fault = topic_fault(name)
    if fault is not None:
        raise RemoteError(Code.TOPIC_INVALID, f"topic {name!r}: {fault}")


def new_topic(known: Topic | None, wanted: TopicCreateRequest, queues_default: int) -> Topic | None:
    """The topic to add for a request, or None when it exists with these settings.

    Raises TOPIC_INVALID, TOPIC_EXISTS. Whether there is room for one more is the caller's to know.
    """
    check_name(wanted.topic)
    queues = wanted.queues or queues_default
    kind = KIND_TEMPORARY if is_temporary(wanted.topic) and wanted.kind == KIND_LOG else wanted.kind
    fault = _fault_of(wanted, queues, kind)
    if fault is not None:
        raise RemoteError(Code.TOPIC_INVALID, f"topic {wanted.topic!r}: {fault}")
    topic = Topic(
        wanted.topic,
        queues,
        queues,
        wanted.perm,
        order=wanted.order,
        kind=kind,
        key_levels=wanted.key_levels,
        retention_ms=wanted.retention_ms,
        stored_queues=queues,
        first_group=wanted.first_group,
        spread=wanted.spread or spread_of(kind, wanted.order),
    )
    if known is None:
        return topic
    if _settings(known) == _settings(topic) and wanted.spread in ("", known.spread):
        return None
    raise RemoteError(
        Code.TOPIC_EXISTS,
        f"topic {known.name!r} exists with {known.write_queues} queues, key_levels {known.key_levels}, "
        f"kind {known.kind}, perm {known.perm}, order {known.order}, retention_ms {known.retention_ms}, "
        f"first_group {known.first_group}, spread {known.spread}",
    )


def _settings(topic: Topic) -> tuple[object, ...]:
    return (
        topic.write_queues,
        topic.key_levels,
        topic.kind,
        topic.perm,
        topic.order,
        topic.retention_ms,
        topic.first_group,
    )


def _fault_of(wanted: TopicCreateRequest, queues: int, kind: str) -> str | None:
    if kind not in KINDS:
        return f"kind {kind!r} is not one of {', '.join(sorted(KINDS))}"
    if is_temporary(wanted.topic) and kind != KIND_TEMPORARY:
        return f"a name that ends in #tmp is temporary, not {kind}"
    if not 1 <= queues <= QUEUES_MAX:
        return f"{queues} queues; 1 to {QUEUES_MAX} are possible"
    if not 1 <= wanted.key_levels <= KEY_LEVELS_MAX:
        return f"key_levels {wanted.key_levels}; 1 to {KEY_LEVELS_MAX} are possible"
    if not 0 <= wanted.perm <= PERM_MAX:
        return f"perm {wanted.perm}; it is the sum of 4 read, 2 write, 1 inherit"
    if wanted.retention_ms < 0:
        return f"retention_ms {wanted.retention_ms}; 0 = as long as the log"
    if wanted.retention_ms and kind == KIND_TEMPORARY:
        return "a temporary topic keeps what fits in memory; it has no retention"
    if wanted.first_group not in FIRST_GROUPS:
        return f"first_group {wanted.first_group!r} is not one of {', '.join(FIRST_GROUPS)}"
    return _spread_fault(wanted.spread, kind, wanted.order) if wanted.spread else None


def _spread_fault(spread: str, kind: str, order: bool) -> str | None:
    if spread not in SPREADS:
        return f"spread {spread!r} is not one of {', '.join(SPREADS)}"
    if spread == SPREAD_ALL and not may_spread(kind, order):
        what = f"of kind {kind}" if kind != KIND_LOG else "ordered"
        return f"it is {what}: keys would move to brokers that got it by themselves; its spread is fixed"
    return None


def existing(topic: Topic | None, name: str) -> Topic:
    """The topic, if it is there and may be administered. Raises TOPIC_INVALID, TOPIC_UNKNOWN."""
    if is_system_topic(name):
        raise RemoteError(Code.TOPIC_INVALID, f"{name!r} is a system topic: its own calls change it")
    if topic is None or topic.is_leaving:
        raise RemoteError(Code.TOPIC_UNKNOWN, f"topic {name!r} does not exist here")
    return topic


def update(topic: Topic, wanted: TopicUpdateRequest) -> Topic:
    """Change perm, order, retention, first group, spread. Raises TOPIC_INVALID, KIND_UNFIT.

    RocketMQ's filter type and sysflag of a topic are kept as an earlier build wrote them, and may be
    repeated: nothing ever asked for them, so another value would be a promise that nobody keeps.
    """
    if wanted.perm is not None and not 0 <= wanted.perm <= PERM_MAX:
        raise _invalid(topic, f"perm {wanted.perm}; it is the sum of 4 read, 2 write, 1 inherit")
    if wanted.filter_type not in (None, topic.filter_type):
        raise _invalid(topic, "a topic has no filter type: each subscriber chooses its filter")
    if wanted.sys_flag not in (None, topic.sys_flag):
        raise _invalid(
            topic, "a topic has no sysflag: what it did in RocketMQ are settings of their own here"
        )
    if wanted.retention_ms is not None and wanted.retention_ms < 0:
        raise _invalid(topic, f"retention_ms {wanted.retention_ms}; 0 = as long as the log")
    if wanted.retention_ms and topic.is_temporary:
        raise RemoteError(Code.KIND_UNFIT, f"{topic.name!r} is temporary: it has no retention")
    if wanted.first_group not in (None, *FIRST_GROUPS):
        raise _invalid(topic, f"first_group {wanted.first_group!r} is not one of {', '.join(FIRST_GROUPS)}")
    order = topic.order if wanted.order is None else wanted.order
    if wanted.spread is not None and (fault := _spread_fault(wanted.spread, topic.kind, order)) is not None:
        raise _invalid(topic, fault)
    spread = topic.spread if wanted.spread is None else wanted.spread
    return replace(
        topic,
        perm=topic.perm if wanted.perm is None else wanted.perm,
        order=order,
        spread=SPREAD_FIXED if order else spread,
        retention_ms=topic.retention_ms if wanted.retention_ms is None else wanted.retention_ms,
        first_group=topic.first_group if wanted.first_group is None else wanted.first_group,
    )


def grow(topic: Topic, queues: int, undrained: Undrained) -> Topic:
    """Give it `queues` queues. Raises TOPIC_INVALID, TOPIC_IN_USE."""
    if not 1 <= queues <= QUEUES_MAX:
        raise _invalid(topic, f"{queues} queues; 1 to {QUEUES_MAX} are possible")
    if queues < topic.write_queues:
        raise _invalid(topic, f"it has {topic.write_queues} queues; fewer is a removal, in steps")
    if queues == topic.write_queues:
        return topic
    if topic.deleting_to != NOT_DELETING:
        raise _in_use(topic, "queues of it are being deleted; try again in a moment")
    if topic.order:
        # A key that moves would be consumed in its new queue before what waits in its old one.
        _require_drained(topic, range(topic.read_queues), undrained, "an ordered topic grows when drained")
    return replace(
        topic,
        write_queues=queues,
        read_queues=max(queues, topic.read_queues),
        stored_queues=max(queues, topic.queues_in_store),
    )


def hide_from_producers(topic: Topic, queues: int, undrained: Undrained) -> Topic:
    """The first step of a removal: `queues` are left to producers. Raises TOPIC_INVALID, TOPIC_IN_USE."""
    _check_removal(topic, queues)
    if queues >= topic.write_queues:
        return topic
    if topic.order:
        hidden = range(queues, topic.read_queues)
        _require_drained(topic, hidden, undrained, "keys of an ordered topic move when drained")
    return replace(topic, write_queues=queues, stored_queues=topic.queues_in_store)


def hide_from_consumers(topic: Topic, queues: int, undrained: Undrained, grace_s: float) -> Topic:
    """The second step. `grace_s`: how long producers may still follow an old route to hidden queues."""
    _check_removal(topic, queues)
    if queues >= topic.read_queues:
        return topic
    if queues < topic.write_queues:
        raise _in_use(
            topic, f"producers still see {topic.write_queues} queues: hide them from producers first"
        )
    if grace_s > 0:
        raise _in_use(topic, f"producers may follow an old route to them for another {grace_s:.0f} s")
    _require_drained(topic, range(queues, topic.read_queues), undrained, "queues are removed when drained")
    return replace(topic, read_queues=queues, stored_queues=topic.queues_in_store)


def delete_queues(topic: Topic, queues: int) -> Topic:
    """The third step: what the queues from `queues` on hold is to be given up."""
    _check_removal(topic, queues)
    if queues >= topic.queues_in_store:
        return topic
    if queues == 0:
        raise _invalid(topic, "its last queue goes with the topic itself: delete that")
    if queues < topic.read_queues:
        raise _in_use(
            topic, f"consumers still see {topic.read_queues} queues: hide them from consumers first"
        )
    return replace(topic, deleting_to=queues)


def show_again(topic: Topic, queue_id: int) -> Topic:
    """A record came to a queue that consumers do not see: show it to them, lower ones included."""
    if topic.is_leaving or queue_id < topic.read_queues or queue_id >= QUEUES_MAX:
        return topic
    read_queues = queue_id + 1
    return replace(topic, read_queues=read_queues, stored_queues=max(read_queues, topic.queues_in_store))


def delete_topic(topic: Topic, force: bool) -> Topic:
    """The whole topic is to be given up: with `force` whoever uses it, else once consumers see nothing."""
    if not force and topic.read_queues and not topic.is_temporary:
        whom = "producers and consumers" if topic.write_queues else "consumers"
        raise _in_use(topic, f"{whom} see {topic.read_queues} queues: hide them, or delete with force")
    return replace(topic, write_queues=0, read_queues=0, stored_queues=topic.queues_in_store, deleting_to=0)


def deleted(topic: Topic) -> Topic | None:
    """After the store gave up the queues: the topic with what is left, None = nothing is."""
    if topic.is_leaving:
        return None
    return replace(topic, stored_queues=max(topic.read_queues, topic.deleting_to), deleting_to=NOT_DELETING)


def settings_to_spread(topic: Topic) -> dict[str, Any]:
    """What another broker needs to have the same topic."""
    return {
        "queues": topic.write_queues,
        "perm": topic.perm,
        "key_levels": topic.key_levels,
        "retention_ms": topic.retention_ms,
        "first_group": topic.first_group,
        "first_reader": topic.first_reader,
        "is_paused": topic.is_paused,
    }


def taken_over(name: str, settings: Mapping[str, Any], position: int) -> Topic:
    """The topic that another broker has, as it begins here, where the log is confirmed up to `position`.

    Raises TOPIC_INVALID for what cannot be a topic.
    """
    check_name(name)
    same = {key: settings[key] for key in _TAKEN_OVER if key in settings}
    queues = settings.get("queues")
    counts = dict.fromkeys(("read_queues", "write_queues", "stored_queues"), queues)
    try:
        topic = topic_of(name, {"name": name, "spread": SPREAD_ALL, **counts, **same})
    except TypeError as error:
        raise RemoteError(Code.TOPIC_INVALID, f"topic {name!r}: {error}") from error
    if topic.perm > PERM_MAX or not topic.write_queues:
        raise RemoteError(Code.TOPIC_INVALID, f"topic {name!r}: perm {topic.perm}, {queues} queues")
    return pause(topic, position) if settings.get("is_paused") is True else topic


def pause(topic: Topic, position: int) -> Topic:
    """Keep what is confirmed from this log position on; a paused topic stays as it is."""
    return topic if topic.is_paused else replace(topic, paused_at=position)


def resume(topic: Topic, position: int, first_position: int) -> Topic:
    """Deliver again. The pause is remembered while the log still has what was kept (`first_position`)."""
    if not topic.is_paused:
        return topic
    past = (*topic.pauses, (topic.paused_at, position))
    kept = tuple(pause for pause in past if pause[1] > first_position and pause[0] < pause[1])
    return replace(topic, paused_at=NOT_PAUSED, pauses=kept[-PAUSES_MAX:])


def clamp_pause(topic: Topic, end_position: int) -> Topic:
    """After a start that cut the log: a pause does not begin beyond its end."""
    if topic.paused_at <= end_position:
        return topic
    return replace(topic, paused_at=end_position)


def why_undrained(
    queue_id: int, end_offset: int, behind: Sequence[tuple[str, int]], is_written: bool
) -> str | None:
    """Why a queue may not go: groups with the offsets at which they are, or records on their way to it."""
    if is_written:
        return f"queue {queue_id} is being written"
    if not behind:
        return None
    group, offset = max(behind, key=lambda entry: end_offset - entry[1])
    others = f" and {len(behind) - 1} more groups" if len(behind) > 1 else ""
    return f"group {group!r} is {end_offset - offset} messages behind in queue {queue_id}{others}"


def _check_removal(topic: Topic, queues: int) -> None:
    if topic.is_temporary:
        raise RemoteError(Code.KIND_UNFIT, f"{topic.name!r} is temporary: delete it as a whole")
    if not 0 <= queues <= QUEUES_MAX:
        raise _invalid(topic, f"{queues} queues; 0 to {QUEUES_MAX} can be left")
    if topic.deleting_to != NOT_DELETING:
        raise _in_use(topic, "queues of it are being deleted; try again in a moment")


def _require_drained(topic: Topic, queues: Iterable[int], undrained: Undrained, rule: str) -> None:
    reasons = []
    for queue_id in queues:
        reason = undrained(queue_id)
        if reason is not None:
            reasons.append(reason)
            if len(reasons) == REASONS_MAX:
                break
    if reasons:
        raise _in_use(topic, f"{rule}: {'; '.join(reasons)}")


def _invalid(topic: Topic, fault: str) -> RemoteError:
    return RemoteError(Code.TOPIC_INVALID, f"topic {topic.name!r}: {fault}")


def _in_use(topic: Topic, reason: str) -> RemoteError:
    return RemoteError(Code.TOPIC_IN_USE, f"topic {topic.name!r}: {reason}")
