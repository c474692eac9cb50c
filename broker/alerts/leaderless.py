"""The alarm of a replica that sees nobody lead its shard: there is no broker then that could raise one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from broker.alerts.core.shard_copies import leaderless
from holdmq.alarms.channels import Channel, channels
from holdmq.alarms.core.alarms import Alarms
from holdmq.alarms.notices import log_notice
from holdmq.config.alarms import AlarmsSection


class LeaderlessWatch:
    """Looks whether anybody leads, from `start` on, and tells by mail and webhook; `close` ends that."""

    def __init__(
        self, section: AlarmsSection, shard: str, replica: str, is_leaderless: Callable[[], bool]
    ) -> None:
        self.alarms = Alarms(section.cooldown_s)
        self._section = section
        self._shard = shard
        self._replica = replica
        self._is_leaderless = is_leaderless
        self._channels: list[Channel] = []
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Look at intervals from now on."""
        # Every replica tells what it sees: which of them are cut off is news, too.
        self._channels = channels(self._section, f"{self._shard}/{self._replica}")
        self._again()

    def _again(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._section.interval_s, self._tick)

    def _tick(self) -> None:
        self._again()
        self.look()

    def look(self) -> None:
        """Raise the alarm or end it."""
        readings = [leaderless(self._shard, self._replica)] if self._is_leaderless() else []
        now = asyncio.get_running_loop().time()
        notices = self.alarms.update(readings, now, time.time_ns() // 1_000_000)
        if not notices:
            return
        for notice in notices:
            log_notice(notice)
        for channel in self._channels:
            channel.put(notices)

    def reconfigure(self, section: AlarmsSection) -> None:
        """Take other times; the channels stay as they are."""
        self._section = section
        self.alarms.cooldown_s = section.cooldown_s
        if self._timer is not None:
            self._timer.cancel()
            self._again()

    def stop(self) -> None:
        """Look at nothing any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """End the channels (blocking, seconds at most)."""
        for channel in self._channels:
            channel.close()
