"""A member of a consumer group as a process of its own; run as a program, or started by `Member`.

It writes a line for each delivery: [topic, broker, queue id, offset, body, began, ended], times by the
machine's monotonic clock, which all processes share.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

from deliveries import Delivery

from holdmq.client import Consumer, Message


class Member:
    """Starts the program; `deliveries` is what it wrote so far."""

    def __init__(
        self, directory: Path, name: str, registry: str, group: str, topic: str, *settings: str
    ) -> None:
        self.name = name
        self.path = directory / f"{name}.deliveries"
        with (directory / f"{name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, __file__, str(self.path), name, registry, group, topic, *settings],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
            )

    def wait_started(self) -> None:
        """Wait until `Consumer.start` returned."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line == b"started\n":
                return
        raise AssertionError(f"{self.name} ended before it had started")

    def deliveries(self) -> list[Delivery]:
        found: list[Delivery] = []
        if self.path.exists():
            for line in self.path.read_bytes().splitlines(keepends=True):
                if line.endswith(b"\n"):
                    topic, broker, queue_id, offset, body, began, ended = json.loads(line)
                    place = (topic, broker, queue_id)
                    found.append(Delivery(self.name, place, offset, body.encode(), began, ended))
        return found

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        code = self.process.wait(40)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


async def main(path: str, name: str, registry: str, group: str, topic: str, *settings: str) -> None:
    options = {key: json.loads(value) for key, _, value in (s.partition("=") for s in settings)}
    pause_s = options.pop("pause_s", 0.0)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    with Path(path).open("ab", buffering=0) as out:  # noqa: ASYNC230 - before anything waits

        async def handle(message: Message) -> None:
            began = time.monotonic()
            await asyncio.sleep(pause_s)
            place = [message.topic, message.broker, message.queue_id, message.queue_offset]
            line = [*place, message.body.decode(), began, time.monotonic()]
            out.write(json.dumps(line).encode() + b"\n")

        async with Consumer([registry], group, handle, [topic], client_id=name, **options):
            print("started", flush=True)
            await ended.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
