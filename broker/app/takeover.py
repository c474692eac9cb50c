"""Shards of silent brokers, taken over until these are back.

A shard whose owner's lease has run out is opened by whichever broker comes first, and served beside its own
at a port that is free. Its broker asks for it when it is back; it gets it after a drain.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Final

import structlog

from broker.app.lives import Lives
from holdmq.config.model import Config
from holdmq.errors import HoldMQError

LOOK_S: Final = 0.5
"""How often is looked for shards without an owner: a takeover is to begin soon after the lease."""
BURDEN_S: Final = 0.25
"""How much longer who has taken over something already leaves the next one to others, for each shard."""

log = structlog.get_logger("holdmq.broker")


class Takeovers:
    """Looks for ownerless shards, and lives their lives beside the broker's own."""

    def __init__(self, config: Config, lives: Lives) -> None:
        # An extra: brokers of the log engine need no client of a key-value server.
        from storage.kv.shards import OtherShards

        self._config = config
        self._lives = lives
        self._shards = OtherShards(config.storage.kv, config.broker.name)
        self._adopted: dict[str, asyncio.Task[None]] = {}
        self._endings: dict[str, asyncio.Event] = {}
        self._looking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look; again is no error."""
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._look(), name="takeovers")

    async def close(self) -> None:
        """Give back what was taken over, and end."""
        if self._looking is not None:
            self._looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._looking
        for ending in self._endings.values():
            ending.set()
        await asyncio.gather(*self._adopted.values())
        await asyncio.get_running_loop().run_in_executor(None, self._shards.close)

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            # Not all in step: the first one to come gets a shard.
            jitter = random.uniform(0.5, 1)  # noqa: S311 - nobody gains by foreseeing it
            await asyncio.sleep(LOOK_S * jitter + BURDEN_S * len(self._adopted))
            try:
                names = await loop.run_in_executor(None, self._shards.ownerless)
            except HoldMQError as error:
                log.warning("shards without an owner cannot be looked for", reason=str(error))
                continue
            for name in names:
                if name not in self._adopted:
                    self._endings[name] = asyncio.Event()
                    self._adopted[name] = loop.create_task(self._adopt(name), name=f"shard {name}")
                    break  # the next one may be somebody else's

    async def _adopt(self, name: str) -> None:
        """Live the life of another broker's shard until that broker wants it back."""
        own = self._config.broker
        host = own.advertise.rpartition(":")[0] if own.advertise else ""
        broker = own.model_copy(update={"name": name, "port": 0, "advertise": "", "bind": own.bind})
        config = self._config.model_copy(update={"broker": broker})
        log.warning("a silent broker's shard is taken over", shard=name)
        try:
            await self._lives.live(config, False, self._endings[name], advertised_host=host)
            log.info("a shard that was taken over is given back", shard=name)
        except HoldMQError as error:
            log.info("a shard is not to be had", shard=name, reason=str(error))
        finally:
            del self._adopted[name], self._endings[name]
