"""Permissions on topics, as a file of lines says: the rules, and what they allow. Sans-IO.

The lines are Mosquitto's, with three words more::

    # whoever has no user name
    topic read public/#
    topic denyread public/plans

    user ada                                # these are ada's, up to the next user line
    topic readwrite devices/#
    topic deny devices/42/secret
    topic replay history/#                  # to read, and from a time in the past on

    pattern readwrite users/%u/#            # everybody's, with his user name and client id
    pattern write devices/%c/telemetry

A rule without a word for what it allows is `readwrite`. What no rule allows is refused, and a `deny` is
stronger than any other rule of the same client. Source: mosquitto.conf(5), acl_file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from holdmq.mqtt import MqttError
from holdmq.mqtt.filters import SHARE_PREFIX, check_filter, matches

READ: Final = 1
WRITE: Final = 2
REPLAY: Final = 4

RULES_MAX: Final = 100_000
"""Rules of a file: 20 MiB in each worker; more belong to a plug-in with a data base."""

_GRANTS: Final = {
    "read": READ,
    "write": WRITE,
    "readwrite": READ | WRITE,
    "replay": READ | REPLAY,
}
_DENIALS: Final = {"deny": READ | WRITE | REPLAY, "denyread": READ | REPLAY, "denywrite": WRITE}


class AclError(ValueError):
    """A line that says nothing; the text names it."""


class Rule(NamedTuple):
    """One line: what it allows (or denies) on the topics that its filter matches."""

    topic_filter: str
    rights: int
    is_denied: bool


class AclRules:
    """The rules of one file. Made by `parse`; never changed, so that any thread may ask it."""

    __slots__ = ("_anonymous", "_patterns", "_users")

    def __init__(
        self, users: dict[str, list[Rule]], anonymous: list[Rule], patterns: list[tuple[Rule, bool, bool]]
    ) -> None:
        self._users = users
        self._anonymous = anonymous
        self._patterns = patterns

    @classmethod
    def parse(cls, text: str) -> AclRules:
        """The rules of a file's text. Raises AclError, which names the line."""
        users: dict[str, list[Rule]] = {}
        anonymous: list[Rule] = []
        patterns: list[tuple[Rule, bool, bool]] = []
        here = anonymous
        count = 0
        for number, line in enumerate(text.splitlines(), 1):
            word, _, rest = line.strip().partition(" ")
            rest = rest.strip()
            if not word or word.startswith("#"):
                continue
            if word == "user":
                if not rest:
                    raise AclError(f"line {number}: user without a name")
                here = users.setdefault(rest, [])
                continue
            if word not in ("topic", "pattern"):
                raise AclError(f"line {number}: {word[:32]!r} is not user, topic or pattern")
            rule = _rule(rest, number)
            count += 1
            if count > RULES_MAX:
                raise AclError(f"line {number}: more than {RULES_MAX} rules")
            if word == "topic":
                here.append(rule)
            else:
                levels = rule.topic_filter
                patterns.append((rule, "%u" in levels, "%c" in levels))
        return cls(users, anonymous, patterns)

    def _rules_of(self, user: str, client_id: str) -> Iterator[Rule]:
        """The rules of one client; `user` "" = anonymous."""
        yield from self._users.get(user, ()) if user else self._anonymous
        for rule, has_user, has_client in self._patterns:
            topic_filter = rule.topic_filter
            # A name with a wildcard or a level in it would mean more topics than its own.
            if has_user:
                if not _is_one_level(user):
                    continue
                topic_filter = topic_filter.replace("%u", user)
            if has_client:
                if not _is_one_level(client_id):
                    continue
                topic_filter = topic_filter.replace("%c", client_id)
            yield rule if topic_filter is rule.topic_filter else rule._replace(topic_filter=topic_filter)

    def may_publish(self, user: str, client_id: str, topic: str) -> bool:
        """Whether a client may publish to a topic."""
        is_allowed = False
        for rule in self._rules_of(user, client_id):
            if rule.rights & WRITE and matches(rule.topic_filter, topic):
                if rule.is_denied:
                    return False
                is_allowed = True
        return is_allowed

    def may_subscribe(
        self, user: str, client_id: str, topic_filter: str, right: int = READ
    ) -> tuple[str, ...] | None:
        """What a subscription must leave out: filters of topics that are denied. None = it is refused.

        A filter is allowed when one rule allows every topic that it can match, and refused when a rule denies
        every one of them.
        """
        is_allowed = False
        left_out: list[str] = []
        for rule in self._rules_of(user, client_id):
            if not rule.rights & right:
                continue
            if not rule.is_denied:
                is_allowed = is_allowed or covers(rule.topic_filter, topic_filter)
            elif covers(rule.topic_filter, topic_filter):
                return None
            elif overlaps(rule.topic_filter, topic_filter):
                left_out.append(rule.topic_filter)
        return tuple(left_out) if is_allowed else None

    def is_denied(self, user: str, client_id: str, topic_filter: str, right: int = READ) -> bool:
        """Whether a rule denies every topic that the filter can match."""
        return any(
            rule.is_denied and rule.rights & right and covers(rule.topic_filter, topic_filter)
            for rule in self._rules_of(user, client_id)
        )


def covers(wide: str, narrow: str) -> bool:
    """Whether every topic that `narrow` matches is matched by `wide`."""
    wanted, levels = wide.split("/"), narrow.split("/")
    if wanted[0] in ("+", "#") and levels[0].startswith("$"):
        return False  # [MQTT-4.7.2-1]
    for at, want in enumerate(wanted):
        if want == "#":
            return True
        if at == len(levels) or levels[at] == "#" or (want != "+" and want != levels[at]):
            return False
    return len(levels) == len(wanted)


def overlaps(one: str, other: str) -> bool:
    """Whether some topic is matched by both filters."""
    left, right = one.split("/"), other.split("/")
    for first, second in ((left[0], right[0]), (right[0], left[0])):
        if first in ("+", "#") and second.startswith("$"):
            return False  # [MQTT-4.7.2-1]
    for at in range(max(len(left), len(right))):
        a = left[at] if at < len(left) else None
        b = right[at] if at < len(right) else None
        if a == "#" or b == "#":
            # `sport/#` matches `sport` too (4.7.1.2), but `/#` no empty topic: there is none [MQTT-4.7.3-1].
            return at != 1 or None not in (a, b) or "" not in (left[0], right[0])
        if a is None or b is None or (a != b and "+" not in (a, b)):
            return False
    return True


def filter_of(topic_filter: str) -> str:
    """The filter on which a subscription needs permission: for `$share/<name>/<filter>` the last part."""
    if topic_filter.startswith(SHARE_PREFIX):
        return topic_filter[len(SHARE_PREFIX) :].partition("/")[2]
    return topic_filter


def _rule(rest: str, number: int) -> Rule:
    word, _, topic_filter = rest.partition(" ")
    rights = _GRANTS.get(word, 0) or _DENIALS.get(word, 0)
    topic_filter = topic_filter.strip()
    if not rights or not topic_filter:
        # A filter may have spaces in it, and may be named as one of the words.
        word, rights, topic_filter = "", READ | WRITE, rest
    try:
        check_filter(topic_filter)
    except MqttError as error:
        raise AclError(f"line {number}: {error}") from error
    return Rule(topic_filter, rights, word in _DENIALS)


def _is_one_level(name: str) -> bool:
    return bool(name) and not any(sign in name for sign in "+#/%")
