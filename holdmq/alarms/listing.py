"""The answer to ALARM_LIST: what a process has raised, where it tells of it, and what is over."""

from __future__ import annotations

from collections.abc import Sequence

from holdmq.alarms.channels import Channel
from holdmq.alarms.core.alarms import Alarm, Alarms
from holdmq.wire.statistics_headers import AlarmListResponse, AlarmRow


def alarm_list(alarms: Alarms, channels: Sequence[Channel]) -> AlarmListResponse:
    """Return the alarms that are raised, the longest first, the channels, and the newest that are over."""
    raised = sorted(alarms.raised.values(), key=lambda alarm: (alarm.since_ms, alarm.key))
    over = list(alarms.over)
    return AlarmListResponse(
        [alarm_row(alarm) for alarm in raised],
        [channel.row() for channel in channels],
        [alarm_row(alarm) for alarm, _ in over],
        [ended_ms for _, ended_ms in over],
    )


def alarm_row(alarm: Alarm) -> AlarmRow:
    """Return what is told of one alarm."""
    reading = alarm.reading
    return AlarmRow(
        *alarm.key,
        alarm.since_ms,
        reading.value,
        reading.threshold,
        alarm.peak,
        reading.text,
        alarm.is_told,
    )
