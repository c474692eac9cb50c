"""What counts as told: notices that a way to people has taken, not those that wait for one."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence

from processes import wait_until

from holdmq.alarms.channels import Channel
from holdmq.alarms.core.alarms import Notice
from holdmq.config.alarms import AlarmsSection
from registry.core.roster import ProcessKey
from registry.watching import ProcessWatch

KEY = ("broker_lost", "broker-0")


async def test_an_alarm_counts_as_told_once_it_is_delivered_and_its_end_too() -> None:
    taken: list[Notice] = []
    may_go = threading.Semaphore(0)

    def deliver(notices: Sequence[Notice]) -> None:
        assert may_go.acquire(timeout=20)
        taken.extend(notices)

    watch = ProcessWatch(AlarmsSection(lost_after_s=0.001), [], "127.0.0.1:1", None, None)
    channel = Channel("test", deliver)
    watch.channels = [channel]
    try:
        watch.roster.lose(ProcessKey("broker", "broker-0"), time.monotonic() - 5)
        await asyncio.sleep(0.01)
        await watch._look()
        assert KEY in watch.alarms.raised
        assert KEY not in watch.watch.told, "nobody has it yet: a crash now would lose it"
        may_go.release()
        await asyncio.to_thread(wait_until, lambda: not channel.undelivered(), "it is delivered")
        await watch._look()
        assert KEY in watch.watch.told

        watch.roster.forget(ProcessKey("broker", "broker-0"))
        await watch._look()
        assert KEY not in watch.alarms.raised
        assert KEY in watch.watch.told, "nobody knows of its end yet: a crash now would lose that"
        may_go.release()
        await asyncio.to_thread(wait_until, lambda: not channel.undelivered(), "it is delivered")
        await watch._look()
        assert KEY not in watch.watch.told
        assert [notice.state.value for notice in taken] == ["raised", "over"]
    finally:
        may_go.release(10)
        channel.close()
