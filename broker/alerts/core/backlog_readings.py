"""What is too long a backlog: by group, by topic over its groups, and of all of them together."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from holdmq.alarms.core.alarms import AlarmKey, Reading
from holdmq.config.alarms import BacklogRule, rule_of

BACKLOG_MESSAGES: Final = "backlog_messages"
BACKLOG_AGE: Final = "backlog_age"
TOPIC_BACKLOG_MESSAGES: Final = "topic_backlog_messages"
TOPIC_BACKLOG_AGE: Final = "topic_backlog_age"
TOTAL_BACKLOG_MESSAGES: Final = "total_backlog_messages"
TOTAL_BACKLOG_AGE: Final = "total_backlog_age"


class TopicBacklog(NamedTuple):
    """A group in one topic, as BacklogRow (holdmq.wire.statistics_headers)."""

    group: str
    mode: str
    topic: str
    messages: int
    oldest_ms: int
    queues: int


class _Sum:
    """Messages and the oldest of several backlogs; `longest` is the one of them with most messages."""

    __slots__ = ("longest", "messages", "oldest_ms")

    def __init__(self, row: TopicBacklog) -> None:
        self.messages = 0
        self.oldest_ms = 0
        self.longest = row

    def add(self, row: TopicBacklog) -> None:
        self.messages += row.messages
        if row.oldest_ms:
            self.oldest_ms = min(self.oldest_ms or row.oldest_ms, row.oldest_ms)
        if row.messages > self.longest.messages:
            self.longest = row

    def age_s(self, now_ms: int) -> int:
        return max(0, now_ms - self.oldest_ms) // 1000 if self.oldest_ms else 0


class BacklogWatch:
    """Turns measured backlogs into readings by rules for groups, for topics, and for all of one broker.

    Patterns are tried once for each name that is there.
    """

    def __init__(
        self, broker: str, groups: list[BacklogRule], topics: list[BacklogRule], total: BacklogRule
    ) -> None:
        self._broker = broker
        self._groups = groups
        self._topics = topics
        self._total = total
        self._group_rules: dict[str, BacklogRule | None] = {}
        self._topic_rules: dict[str, BacklogRule | None] = {}

    @property
    def has_rules(self) -> bool:
        """Whether any backlog can be too long."""
        return bool(self._groups) or self._is_whole

    @property
    def _is_whole(self) -> bool:
        return bool(self._topics or self._total.messages or self._total.age_s)

    def watched(self, groups: Iterable[str]) -> list[str]:
        """Those of the groups that have to be measured: all of them if a rule is about more than groups."""
        self._group_rules = _matched(self._groups, groups, self._group_rules)
        return [name for name, rule in self._group_rules.items() if self._is_whole or rule is not None]

    def readings(
        self, found: Sequence[TopicBacklog], raised: Container[tuple[str, str]], now_ms: int
    ) -> Iterator[Reading]:
        """Backlogs that are over their threshold, or whose alarm is raised already. Times are wall clock."""
        by_group: dict[str, _Sum] = {}
        by_topic: dict[str, _Sum] = {}
        total: _Sum | None = None
        for row in found:
            total = total or _Sum(row)
            for into in (
                by_group.setdefault(row.group, _Sum(row)),
                by_topic.setdefault(row.topic, _Sum(row)),
                total,
            ):
                into.add(row)
        for group, backlog in by_group.items():
            rule = self._group_rules.get(group)
            if rule is not None:
                kinds = (BACKLOG_MESSAGES, BACKLOG_AGE)
                of = (f"group {group}", f"most of {backlog.longest.topic}")
                yield from _over(kinds, group, rule, backlog, of, raised, now_ms)
        self._topic_rules = _matched(self._topics, by_topic, self._topic_rules)
        for topic, backlog in by_topic.items():
            rule = self._topic_rules[topic]
            if rule is not None:
                kinds = (TOPIC_BACKLOG_MESSAGES, TOPIC_BACKLOG_AGE)
                of = (f"topic {topic}", f"most by group {backlog.longest.group}")
                yield from _over(kinds, topic, rule, backlog, of, raised, now_ms)
        if total is not None:
            kinds = (TOTAL_BACKLOG_MESSAGES, TOTAL_BACKLOG_AGE)
            most = f"most of {total.longest.topic} by group {total.longest.group}"
            of = (f"broker {self._broker}", most)
            yield from _over(kinds, self._broker, self._total, total, of, raised, now_ms)


def _matched(
    rules: list[BacklogRule], names: Iterable[str], known: dict[str, BacklogRule | None]
) -> dict[str, BacklogRule | None]:
    return {name: known[name] if name in known else rule_of(rules, name) for name in names}


def _over(
    kinds: tuple[str, str],
    name: str,
    rule: BacklogRule,
    backlog: _Sum,
    of: tuple[str, str],
    raised: Container[tuple[str, str]],
    now_ms: int,
) -> Iterator[Reading]:
    age_s = backlog.age_s(now_ms)
    text = f"{of[0]} has {backlog.messages} messages to consume, the oldest for {age_s} s, {of[1]}"
    for kind, value, threshold in zip(
        kinds, (backlog.messages, age_s), (rule.messages, rule.age_s), strict=True
    ):
        if threshold and (value >= threshold or (kind, name) in raised):
            yield Reading(AlarmKey(kind, name), value, threshold, text)
