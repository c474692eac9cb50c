"""flush = "sync", seen from outside: the kernel's record of a broker shows no answer before its fdatasync."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psutil
from processes import Stack, wait_until

from holdmq.client.producer import Producer
from holdmq.message import Message

MESSAGES = 200
TRACED: Final = "trace=pwrite64,pwritev,pwritev2,fdatasync,write,writev,sendto,sendmsg"
LINE: Final = re.compile(r"^(?P<thread>\d+)\s+(?P<rest>.*)$")


async def produce(registry: str, broker_port: int) -> int:
    """Send one message after the other, each when the one before is stored; the SDK's own TCP port."""
    async with Producer([registry]) as producer:
        for i in range(MESSAGES):
            await producer.send(Message("devices", b"sync-%04d" % i))
        connections = psutil.Process().net_connections("tcp")
        (port,) = [c.laddr.port for c in connections if c.raddr and c.raddr.port == broker_port]
        return int(port)


def events(trace: str, port: int) -> list[str]:
    """What the trace says in order: log write, sync began, sync ended, answer.

    An unfinished call counts where it begins for writes and answers, where it ends for syncs.
    """
    found: list[str] = []
    syncing: set[str] = set()
    answered = f"->127.0.0.1:{port}]"
    for line in trace.splitlines():
        match = LINE.match(line)
        assert match is not None, line
        thread, rest = match["thread"], match["rest"]
        if rest.startswith("<... fdatasync resumed") and thread in syncing:
            syncing.discard(thread)
            assert rest.endswith("= 0"), rest
            found.append("synced")
        elif "commitlog/" in rest and rest.startswith(("pwrite64(", "pwritev(", "pwritev2(")):
            found.append("write")
        elif "commitlog/" in rest and rest.startswith("fdatasync("):
            found.append("sync")
            if "<unfinished" in rest:
                syncing.add(thread)
            else:
                assert rest.endswith("= 0"), rest
                found.append("synced")
        elif answered in rest and rest.startswith(("write(", "writev(", "sendto(", "sendmsg(")):
            found.append("answer")
    return found


def test_no_answer_leaves_before_the_fdatasync_that_covers_its_record(
    holdmq_stack: Callable[..., Stack], tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    stack = holdmq_stack(services=("registry",), **{"storage.flush": "sync"})
    stack.start("broker", prefix=("strace", "-D", "-f", "-yy", "-e", TRACED, "-o", str(trace)))
    port = asyncio.run(produce(stack.registry, stack.broker_port))
    assert stack.stop("broker") == 0
    # The tracer outlives what it traces.
    wait_until(
        lambda: trace.read_text(errors="replace").endswith("+++ exited with 0 +++\n"), "the trace ends"
    )
    order = events(trace.read_text(errors="replace"), port)
    first_write = order.index("write")
    unsynced = covered = answers = writes = 0
    for event in order[first_write:]:
        if event == "write":
            unsynced += 1
            writes += 1
        elif event == "sync":
            covered = unsynced
        elif event == "synced":
            unsynced -= covered
            covered = 0
        else:
            assert unsynced == 0, "an answer left while a written record was not synced"
            answers += 1
    assert writes >= MESSAGES
    assert answers >= MESSAGES
