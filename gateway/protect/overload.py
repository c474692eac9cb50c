"""A worker that has too much to do: it looks at itself, refuses what is new, reads less, and recovers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gateway.brokers.link import BrokerLink
from gateway.ground.counters import Counters
from gateway.protect.core.overload import MEMORY, NORMAL, PAUSING, REFUSING, Overload, noisiest
from gateway.protect.metering import MeteredConnection, Metering
from holdmq.config.model import GatewaySection
from holdmq.service import telemetry
from holdmq.service.memory import give_back_memory, memory_limit, memory_used

PAUSED_S: Final = 2.0
"""How long a noisy client is not read at a time: then it is measured again."""
GIVE_BACK_S: Final = 5.0
"""How often a worker over its memory gives free pages back: without it what was freed would still count."""

_DOING: Final = {
    REFUSING: "new connections are refused",
    PAUSING: "new connections are refused, and who sends most is not read",
}

log = telemetry.get_logger()


def memory_watermark(section: GatewaySection, workers: int) -> int:
    """The memory above which one of so many workers is overloaded, in bytes."""
    return section.overload_memory_bytes or memory_limit() * 4 // 5 // workers


class OverloadWatch:
    """Samples a worker once a second, and does what its level asks for."""

    def __init__(
        self,
        section: GatewaySection,
        workers: int,
        worker: int,
        links: Mapping[str, BrokerLink],
        counters: Counters,
        metering: Metering,
    ) -> None:
        self._worker = worker
        self._links = links
        self._counters = counters
        self._metering = metering
        self._core = Overload(section.overload_lag_ms / 1000, memory_watermark(section, workers))
        self._workers = workers
        self._busy_since: float | None = None
        self._paused: dict[MeteredConnection, float] = {}
        """Clients that are not read, and until when."""
        self._gave_back_at = 0.0

    def reconfigure(self, section: GatewaySection) -> None:
        """Take other limits: the next sample is judged by them."""
        self._core.lag_limit_s = section.overload_lag_ms / 1000
        self._core.memory_limit_bytes = memory_watermark(section, self._workers)

    @property
    def level(self) -> int:
        """NORMAL, REFUSING or PAUSING."""
        return self._core.level

    @property
    def cause(self) -> str:
        """What made the level rise."""
        return self._core.cause

    def tick(self, late_s: float) -> None:
        """The worker's clock ticked so late."""
        self._core.ticked(late_s)

    def each_second(self, now: float) -> None:
        """Take a sample, and act on it."""
        counters, before = self._counters, self._core.level
        counters.memory_bytes = memory_used()
        level = self._core.sample(counters.memory_bytes, self._busy_s(now), now)
        if level != before:
            self._changed(before, level)
        if level and self._core.cause == MEMORY and now - self._gave_back_at >= GIVE_BACK_S:
            self._gave_back_at = now
            give_back_memory()
        for connection in [
            connection for connection, until in self._paused.items() if until <= now or level < PAUSING
        ]:
            del self._paused[connection]
            connection.overload_is_over()
        if level == PAUSING:
            self._pause(now)
        counters.overload_level = level
        counters.overload_paused = len(self._paused)

    def forget(self, connection: MeteredConnection) -> None:
        """A connection is gone."""
        self._paused.pop(connection, None)

    def _busy_s(self, now: float) -> float:
        """How long every broker has refused what it was sent."""
        producers = [link.producer for link in self._links.values() if link.producer.is_connected]
        if not producers or not all(p.is_put_off or p.is_full for p in producers):
            self._busy_since = None
            return 0.0
        if self._busy_since is None:
            self._busy_since = now
        return now - self._busy_since

    def _changed(self, before: int, level: int) -> None:
        self._metering.listen_for_noise(level == PAUSING)
        counters = self._counters
        fields = {
            "worker": self._worker,
            "memory_bytes": counters.memory_bytes,
            "connections": counters.connections,
        }
        if level > before:
            counters.overload_total += before == NORMAL
            log.warning("a worker has too much to do", cause=self._core.cause, doing=_DOING[level], **fields)
        elif level:
            log.info("a worker has less to do", doing=_DOING[level], **fields)
        else:
            log.info("a worker is not overloaded any more", **fields)

    def _pause(self, now: float) -> None:
        """Do not read who sent most of what came in the last second."""
        meter = self._metering.meter
        if meter is None or meter.noise is None:
            return
        heard, meter.noise = meter.noise, {}
        for connection in noisiest(heard.items()):
            if connection.session.inbound is not None and connection not in self._paused:
                self._paused[connection] = now + PAUSED_S
                connection.pause_for_overload()
