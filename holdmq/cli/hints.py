"""What to do about what a broker or registry refuses: a hint behind its sentence."""

from __future__ import annotations

from typing import Final

from holdmq.errors import Code, HoldMQError, RemoteError

HINTS: Final = {
    Code.BUSY: "try again in a moment; `holdmq top` shows what the broker does",
    Code.NOT_PERMITTED: "`holdmq key list` shows what each access key may do",
    Code.UNAUTHENTICATED: "give client.access_key and its secret, as `holdmq key create` made them",
    Code.RECORD_TOO_LARGE: "send less at a time, or raise storage.record_max_bytes",
    Code.MESSAGE_TOO_SMALL: "send more at a time, or lower broker.message_bytes_min",
    Code.TOPIC_UNKNOWN: "`holdmq topic list` shows what there is, `holdmq topic create` makes one",
    Code.TOPIC_INVALID: "a name has letters, digits, _ and -",
    Code.TOPIC_LIMIT: "`holdmq topic delete` makes room",
    Code.TOPIC_EXISTS: "`holdmq topic update` changes its settings, `holdmq topic queues --to N` its queues",
    Code.TOPIC_PERM: "`holdmq topic update --perm rw` allows both",
    Code.TOPIC_PAUSED: "`holdmq topic resume` lets it deliver",
    Code.TOPIC_IN_USE: "let its groups consume the rest, or add --force to lose it",
    Code.STORE_FULL: "free space on the broker's disk; it takes messages again by itself",
    Code.NOT_ENOUGH_REPLICAS: "`holdmq replica list` shows which replicas are missing",
    Code.STORE_READ_ONLY: "look at the broker's log and its disk, then restart it",
    Code.KIND_UNFIT: "`holdmq topic list` shows each topic's kind",
    Code.GROUP_UNKNOWN: "`holdmq group list` shows what there is, `holdmq group create` makes one",
    Code.GROUP_DISABLED: "`holdmq group update --consume` switches it on",
    Code.GROUP_IN_USE: "`holdmq group clients` names its members",
    Code.MODE_CONFLICT: "`holdmq group clients` shows how its members consume",
    Code.ROW_CHANGED: "`holdmq table get --json` shows the version that it has now",
    Code.SHUTTING_DOWN: "try again when the broker is back",
}
"""By code; others say by themselves what to do, or need nobody to do anything."""


def with_hint(error: HoldMQError) -> str:
    """Return an error's sentence, with a hint unless it names a command already."""
    sentence = str(error)
    hint = HINTS.get(error.code) if isinstance(error, RemoteError) else None
    return sentence if hint is None or "`holdmq " in sentence else f"{sentence}; {hint}"
