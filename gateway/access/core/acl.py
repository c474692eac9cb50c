"""Permissions on topics, as a file of lines says: the rules, and what they allow. Sans-IO.

The lines are Mosquitto's, with three words more::

    # whoever has no user name
    topic read public/#
    topic denyread public/plans

    user ada                                # these are ada's, up to the next user line
    topic readwrite devices/#
    topic deny devices/42/secret
    topic replay history/#                  # to read, and from a time in the past on

    clientid dash-*                         # client ids that she may take

    pattern readwrite users/%u/#            # everybody's, with his user name and client id
    pattern write devices/%c/telemetry
    pattern clientid %u:*

A rule without a word for what it allows is `readwrite`. What no rule allows is refused, and a `deny` is
stronger than any other rule of the same client. Without a `clientid` line everybody may take every client id.
Source: mosquitto.conf(5), acl_file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from holdmq.mqtt import MqttError
from holdmq.mqtt.filters import SHARE_PREFIX, check_filter, matches

READ: Final = 1
WRITE: Final = 2
REPLAY: Final = 4

RULES_MAX: Final = 100_000
"""Rules of a file: 20 MiB in each worker; more belong to a plug-in with a data base."""

CLIENT_ID_WORD: Final = "clientid"

ANY_ID: Final = 0
"""No line says anything of client ids."""
MAY_TAKE: Final = 1
"""A line lets the client have this one."""
OWNS: Final = 2
"""The line is the user's own, or names him: another user's session with this id is out of place."""

_GRANTS: Final = {
    "read": READ,
    "write": WRITE,
    "readwrite": READ | WRITE,
    "replay": READ | REPLAY,
}
_DENIALS: Final = {"deny": READ | WRITE | REPLAY, "denyread": READ | REPLAY, "denywrite": WRITE}
_NAMES: Final = re.compile("%[uc]")


class AclError(ValueError):
    """A line that says nothing; the text names it."""


class Rule(NamedTuple):
    """One line: what it allows (or denies) on the topics that its filter matches."""

    topic_filter: str
    rights: int
    is_denied: bool


class _Pattern(NamedTuple):
    """A rule for everybody, with the names of who asks in its filter."""

    rule: Rule
    has_user: bool
    has_client: bool


class IdPattern(NamedTuple):
    """Client ids: those that begin and end so; with `tail` None the one that is `head`.

    `has_user`: `%u` stands for the user name, which is put in as it is: a `*` in it is a `*`.
    """

    head: str
    tail: str | None
    has_user: bool

    def matches(self, user: str, client_id: str) -> bool:
        """Whether a client id is one of them; nobody without a name has what `%u` means."""
        head, tail = self.head, self.tail
        if self.has_user:
            if not user:
                return False
            head = head.replace("%u", user)
            tail = None if tail is None else tail.replace("%u", user)
        if tail is None:
            return client_id == head
        # Not the same characters for both.
        return (
            len(client_id) >= len(head) + len(tail)
            and client_id.startswith(head)
            and client_id.endswith(tail)
        )


class AclRules:
    """The rules of one file. Made by `parse`; never changed, so that any thread may ask it."""

    __slots__ = ("_anonymous", "_id_patterns", "_ids", "_patterns", "_users")

    def __init__(
        self,
        users: dict[str, list[Rule]],
        anonymous: list[Rule],
        patterns: list[_Pattern],
        ids: dict[str, list[IdPattern]],
        id_patterns: list[IdPattern],
    ) -> None:
        self._users = users
        self._anonymous = anonymous
        self._patterns = patterns
        self._ids = ids
        self._id_patterns = id_patterns

    @classmethod
    def parse(cls, text: str) -> AclRules:
        """The rules of a file's text. Raises AclError, which names the line."""
        users: dict[str, list[Rule]] = {}
        anonymous: list[Rule] = []
        patterns: list[_Pattern] = []
        ids: dict[str, list[IdPattern]] = {}
        id_patterns: list[IdPattern] = []
        here, user = anonymous, ""
        count = 0
        for number, line in enumerate(text.splitlines(), 1):
            word, _, rest = line.strip().partition(" ")
            rest = rest.strip()
            if not word or word.startswith("#"):
                continue
            if word == "user":
                if not rest:
                    raise AclError(f"line {number}: user without a name")
                here, user = users.setdefault(rest, []), rest
                continue
            if word not in ("topic", "pattern", CLIENT_ID_WORD):
                raise AclError(f"line {number}: {word[:32]!r} is not user, topic, pattern or clientid")
            count += 1
            if count > RULES_MAX:
                raise AclError(f"line {number}: more than {RULES_MAX} rules")
            kind, _, ids_text = rest.partition(" ")
            if word == CLIENT_ID_WORD:
                if not user and "%u" in rest:
                    raise AclError(
                        f"line {number}: %u above the first user line, where clients have no name; for every "
                        f"user it is `pattern clientid {rest[:64]}`"
                    )
                ids.setdefault(user, []).append(_id_pattern(rest, number))
            elif word == "pattern" and kind == CLIENT_ID_WORD:
                id_patterns.append(_id_pattern(ids_text.strip(), number))
            elif word == "pattern":
                rule = _rule(rest, number)
                patterns.append(_Pattern(rule, "%u" in rule.topic_filter, "%c" in rule.topic_filter))
            else:
                here.append(_rule(rest, number))
        return cls(users, anonymous, patterns, ids, id_patterns)

    def _rules_of(self, user: str, client_id: str) -> Iterator[Rule]:
        """The rules of one client; `user` "" = anonymous."""
        yield from self._users.get(user, ()) if user else self._anonymous
        for pattern in self._patterns:
            rule = pattern.rule
            topic_filter = _filled(pattern, user, client_id)
            if topic_filter is rule.topic_filter:
                yield rule
            elif topic_filter is not None:
                yield Rule(topic_filter, rule.rights, rule.is_denied)

    def id_right(self, user: str, client_id: str) -> int | None:
        """What a client may do with a client id: ANY_ID, MAY_TAKE or OWNS; None = nothing.

        A line for everybody that does not say `%u` makes nobody an owner, and who has no name owns nothing:
        he is anybody.
        """
        if not self._ids and not self._id_patterns:
            return ANY_ID
        own = self._ids.get(user, ())
        if any(pattern.matches(user, client_id) for pattern in own):
            return OWNS if user else MAY_TAKE
        found: int | None = None
        for pattern in self._id_patterns:
            if pattern.matches(user, client_id):
                if pattern.has_user:
                    return OWNS
                found = MAY_TAKE
        return found

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


def _id_pattern(text: str, number: int) -> IdPattern:
    if not text:
        raise AclError(f"line {number}: clientid without a client id")
    if "%c" in text:
        raise AclError(f"line {number}: %c in a clientid line, which is there to say what it may be")
    head, star, tail = text.partition("*")
    if "*" in tail:
        raise AclError(f"line {number}: {text[:64]!r} has more than one *")
    return IdPattern(head, tail if star else None, "%u" in text)


def _filled(pattern: _Pattern, user: str, client_id: str) -> str | None:
    """The filter of a pattern with a client's names in it; None = the rule says nothing of this client."""
    topic_filter = pattern.rule.topic_filter
    if pattern.rule.is_denied:
        if (pattern.has_user and not user) or (pattern.has_client and not client_id):
            return None
        # A name that means more topics than its own denies more to who has it, and must not deny less.
        return _NAMES.sub(lambda found: user if found[0] == "%u" else client_id, topic_filter)
    filled = topic_filter
    if pattern.has_user:
        if not _is_one_level(user):
            return None
        filled = filled.replace("%u", user)
    if pattern.has_client:
        if not _is_one_level(client_id):
            return None
        filled = filled.replace("%c", client_id)
    if filled[0] == "$" != topic_filter[0]:
        return None  # a client named `$SYS` is no system
    return filled


def _is_one_level(name: str) -> bool:
    """Whether a name, put into a filter, means no more topics than its own."""
    return bool(name) and not any(sign in name for sign in "+#/%")
