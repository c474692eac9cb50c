"""Alarms: looked for at intervals, told by mail and webhook, listed by ALARM_LIST.

Raised are: a backlog by count or age over its rule's threshold, dead letters, a log that takes no records or
lost some, a shared group whose window is full; by a leader, copies that lag or are missing. What decides is
holdmq.alarms.core.alarms; holdmq.alarms.channels does the telling.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import structlog

from broker.alerts.backlog import Backlogs
from broker.alerts.core.backlog_readings import BacklogWatch, TopicBacklog
from broker.alerts.core.dead_letters import DeadLetterCounts
from broker.alerts.core.registry_sight import RegistrySight
from broker.alerts.core.shard_copies import CopyReadings, KnowsCopies
from broker.kernel.request_family import RequestFamily
from broker.retry.copies import DeadLetter
from broker.shared_groups.core.queue import QueueKey
from holdmq.alarms.channels import Channel, channels
from holdmq.alarms.core.alarms import AlarmKey, Alarms, Reading
from holdmq.alarms.listing import alarm_list
from holdmq.alarms.notices import log_notice
from holdmq.config.alarms import AlarmsSection
from holdmq.errors import HoldMQError
from holdmq.rpc.connection import Request
from holdmq.rpc.server import OnRequest
from holdmq.wire.codes import RequestCode
from storage.api.store import RecordLoss, StoreState

DEAD_LETTERS: Final = "dead_letters"
LOG: Final = "log"
LOST_RECORDS: Final = "lost_records"
SHARED_WINDOW: Final = "shared_window"

log = structlog.get_logger("holdmq.broker")


class AlarmWatch(RequestFamily):
    """Looks for alarms from `start` on; `close` ends what it told others with."""

    def __init__(
        self,
        section: AlarmsSection,
        broker: str,
        backlogs: Backlogs,
        store_state: Callable[[], StoreState],
        loss: Callable[[], RecordLoss],
        full_windows: Callable[[], Sequence[QueueKey]],
        copies: KnowsCopies,
        registries: RegistrySight,
    ) -> None:
        self.alarms = Alarms(section.cooldown_s)
        self.channels: list[Channel] = []
        self.late = 0
        self._section = section
        self._broker = broker
        self._too_long = _too_long(section, broker)
        self._backlogs = backlogs
        self._store_state = store_state
        self._loss = loss
        self._full_windows = full_windows
        self._copies = copies
        self._registries = registries
        self._copy_readings = CopyReadings(section.replica_lag_s, section.copies_missing_s)
        self._letters = DeadLetterCounts(section.cooldown_s)
        self._backlog: list[Reading] = []
        self._is_measuring = False
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    # The part

    def routes(self) -> Mapping[RequestCode, OnRequest]:
        return {RequestCode.ALARM_LIST: self.list_alarms}

    def numbers(self) -> Mapping[str, int]:
        rows = [channel.row() for channel in self.channels]
        return {
            "alarms": len(self.alarms.raised),
            "alarms_raised_total": self.alarms.raised_total,
            "alarms_refused_total": self.alarms.refused,
            "alarm_rounds_late_total": self.late,
            "alarm_notices_waiting": sum(row.waiting for row in rows),
            "alarm_notices_sent_total": sum(row.sent for row in rows),
            "alarm_notices_dropped_total": sum(row.dropped for row in rows),
            "alarm_delivery_failures_total": sum(row.failed for row in rows),
        }

    def start(self) -> None:
        """Look at intervals from now on, and tell by the channels that are configured."""
        self.channels = channels(self._section, self._broker)
        self._timer = self._loop.call_later(self._section.interval_s, self._tick)

    def reconfigure(self, section: AlarmsSection) -> None:
        """Take other thresholds, rules and times, and look by them at once; the channels stay as they are."""
        self._section = section
        self._too_long = _too_long(section, self._broker)
        self.alarms.cooldown_s = section.cooldown_s
        self._letters.quiet_s = section.cooldown_s
        self._copy_readings.reconfigure(section.replica_lag_s, section.copies_missing_s)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = self._loop.call_later(0, self._tick)

    def release_all(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """End the channels (blocking, seconds at most)."""
        for channel in self.channels:
            channel.close()

    def list_alarms(self, request: Request) -> None:
        """Answer ALARM_LIST with every alarm that is raised."""
        request.reply(alarm_list(self.alarms, self.channels))

    def dead_letters(self, letters: Sequence[DeadLetter]) -> None:
        """Groups gave messages up."""
        now = self._loop.time()
        for group, messages in Counter(letter.group for letter in letters).items():
            self._letters.add(group, messages, now)

    # Rounds

    def _tick(self) -> None:
        self._timer = self._loop.call_later(self._section.interval_s, self._tick)
        self.look()

    def look(self) -> None:
        """Measure, then raise and end alarms: what is measured longer than a round counts in a later one."""
        watched = self._too_long.watched(self._backlogs.groups()) if self._too_long.has_rules else []
        if self._is_measuring:
            self.late += 1
        elif watched:
            self._measure(watched)
            return
        else:
            self._backlog = []
        self._finish_round()

    def _measure(self, watched: list[str]) -> None:
        def measured(found: list[TopicBacklog] | HoldMQError) -> None:
            self._is_measuring = False
            if isinstance(found, HoldMQError):
                self._not_measured(found)
            else:
                now_ms = time.time_ns() // 1_000_000
                self._backlog = list(self._too_long.readings(found, self.alarms.raised, now_ms))
            self._finish_round()

        self._is_measuring = True
        try:
            self._backlogs.measure(watched, measured)
        except HoldMQError as error:
            measured(error)

    def _not_measured(self, error: HoldMQError) -> None:
        """What was known stays: an alarm must not seem over as nobody can look."""
        log.warning("the backlog of groups could not be measured for alarms", reason=str(error))

    def _finish_round(self) -> None:
        now = self._loop.time()
        readings = [*self._backlog, *self._other_readings(now)]
        notices = self.alarms.update(readings, now, time.time_ns() // 1_000_000)
        if not notices:
            return
        for notice in notices:
            log_notice(notice)
        for channel in self.channels:
            channel.put(notices)

    def _other_readings(self, now: float) -> Iterator[Reading]:
        threshold = self._section.dead_letters
        for group, messages in self._letters.take(now).items():
            if threshold:
                text = f"group {group} gave up {messages} messages; holdmq dlq read {group} shows them"
                yield Reading(AlarmKey(DEAD_LETTERS, group), messages, threshold, text)
        ok, reason = self._store_state()
        if not ok:
            text = f"broker {self._broker} takes no messages: {reason}"
            yield Reading(AlarmKey(LOG, self._broker), 1, 1, text)
        loss = self._loss()
        if self._section.lost_records and loss.age_s < self._section.cooldown_s:
            text = (
                f"the key-value servers lost {loss.records} messages that broker {self._broker} had "
                "confirmed: a server came back, or a replica took over, without them; "
                "holdmq kv check shows the shard"
            )
            about = AlarmKey(LOST_RECORDS, self._broker)
            yield Reading(about, loss.records, self._section.lost_records, text)
        for key in self._full_windows():
            text = (
                f"shared group {key.group} is handed out nothing new of {key.topic}/{key.queue_id}: its "
                "window is full behind a message that is not acknowledged"
            )
            name = f"{key.group}@{key.topic}/{key.queue_id}"
            yield Reading(AlarmKey(SHARED_WINDOW, name), 1, 1, text)
        registries = self._registries.reading(now, self._section.lost_after_s)
        if registries is not None:
            yield registries
        copies = self._copies.copies()
        if copies is not None:
            yield from self._copy_readings.of(copies, now)


def _too_long(section: AlarmsSection, broker: str) -> BacklogWatch:
    return BacklogWatch(broker, section.rules(), section.topic_rules(), section.total_rule())
