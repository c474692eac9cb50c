"""Questions to a query process: in turn, bounded, and none that outlives its deadline, memory or asker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from console.sql.box import QUERIES, BoxFullError, QueryBox
from console.sql.questions import SqlQuestion

MEMORY = 64 << 20
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT 1 FROM n) SELECT count(*) FROM n WHERE i = 2"
# One call of one function: DuckDB looks at no interruption before it returns, which takes hours.
DEAF = "SELECT levenshtein(repeat('a', 2000000), repeat('b', 2000000))"


def question(sql: str, seconds: float = 120) -> SqlQuestion:
    return SqlQuestion("sql", {"sql": sql}, "json", seconds, 100, 1 << 20)


@asynccontextmanager
async def box_over(directory: Path, waiting_max: int = 4) -> AsyncIterator[QueryBox]:
    box = QueryBox("test", directory, MEMORY, waiting_max)
    try:
        yield box
    finally:
        await box.close()


def counted(outcome: str) -> float:
    return float(QUERIES.labels("test", outcome)._value.get())


async def value_of(box: QueryBox, sql: str) -> object:
    reply = await box.ask(question(sql))
    assert reply.outcome == "ok", reply
    return json.loads(reply.body)["rows"][0][0]


def pid_of(box: QueryBox) -> int:
    assert box._process is not None
    return box._process.pid


def lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def told(pid: int, name: str) -> str:
    """What the kernel tells of a process."""
    return Path(f"/proc/{pid}/{name}").read_text()


async def test_one_process_answers_without_secrets_and_ends_with_the_box(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDMQ_CLIENT__SECRET", "do not tell")
    async with box_over(tmp_path) as box:
        assert await value_of(box, "SELECT 42") == 42
        pid = pid_of(box)
        assert await value_of(box, "SELECT 43") == 43
        assert pid_of(box) == pid
        assert "HOLDMQ_" not in told(pid, "environ")
        limits = told(pid, "limits").splitlines()
        assert next(line for line in limits if "Max file size" in line).split()[3] == "0"
    assert not lives(pid)
    assert (await box.ask(question("SELECT 1"))).outcome == "ended"


async def test_a_process_that_was_made_ready_answers_the_first_question(tmp_path: Path) -> None:
    async with box_over(tmp_path) as box:
        box.get_ready()
        box.get_ready()
        while box._process is None:
            await asyncio.sleep(0.01)
        pid = pid_of(box)
        assert await value_of(box, "SELECT 42") == 42
        box.get_ready()
        await asyncio.sleep(0)
        assert await value_of(box, "SELECT 43") == 43
        assert pid_of(box) == pid
    async with box_over(tmp_path) as box:
        box.get_ready()  # closed while it starts
        await asyncio.sleep(0)
    assert box._process is None
    box.get_ready()
    await asyncio.sleep(0.05)
    assert box._process is None


async def test_what_no_interruption_reaches_ends_with_its_process(tmp_path: Path) -> None:
    async with box_over(tmp_path) as box:
        reply = await box.ask(question(DEAF, seconds=0.3))
        assert reply.outcome == "time"
        assert "console.sql_seconds_max" in reply.message
        assert await value_of(box, "SELECT 'next'") == "next"


async def test_memory_that_duckdb_does_not_count_ends_the_query_and_not_the_machine(tmp_path: Path) -> None:
    async with box_over(tmp_path) as box:
        reply = await box.ask(question("SELECT length(list_value(repeat('x', 4000000000), 'y')[1])"))
        assert reply.outcome in ("memory", "ended", "error"), reply
        reply = await box.ask(question("SELECT len(list_reverse(range(1000000000)))"))
        assert reply.outcome in ("memory", "ended", "error"), reply
        assert "memory" in reply.message.lower()
        # Raised where rows are handed over, as an error of another kind that advises a SET.
        reply = await box.ask(question("SELECT repeat('x', 900000) FROM range(3000)"))
        assert (reply.outcome, "console.sql_memory_bytes" in reply.message) == ("memory", True), reply
        assert await value_of(box, "SELECT 'next'") == "next"


async def test_queries_beyond_the_bound_are_refused_and_one_whose_asker_leaves_ends(tmp_path: Path) -> None:
    async with box_over(tmp_path, waiting_max=2) as box:
        await value_of(box, "SELECT 1")
        full, left, pid = counted("full"), counted("left"), pid_of(box)
        running = asyncio.create_task(box.ask(question(ENDLESS, seconds=60)))
        waiting = asyncio.create_task(box.ask(question("SELECT 2")))
        await asyncio.sleep(0)
        with pytest.raises(BoxFullError, match=r"console\.sql_waiting_max"):
            await box.ask(question("SELECT 3"))
        assert counted("full") == full + 1
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert counted("left") == left + 1
        assert (await waiting).outcome == "ok"
        assert not lives(pid)


async def test_a_process_that_failed_sends_to_the_log_which_has_the_cause(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with box_over(tmp_path) as box:
        # What is captured goes to a file, which a query process may not write.
        reply = await box.ask(SqlQuestion("no such report", {}, "json", 120, 100, 1 << 20))
        assert reply.outcome == "ended"
        assert "the console's log has the cause" in reply.message
        assert "KeyError: \\'no such report\\'" in "".join(capfd.readouterr())
        assert await value_of(box, "SELECT 'next'") == "next"


async def test_a_process_that_was_killed_is_replaced(tmp_path: Path) -> None:
    async with box_over(tmp_path) as box:
        await value_of(box, "SELECT 1")
        assert box._process is not None
        box._process.kill()
        await box._process.wait()
        assert await value_of(box, "SELECT 2") == 2


# Ready like ours, then a reply of another protocol: 0x41414141 bytes are announced, and it stays.
OTHER = """
import os
os.write(1, bytes([0, 0, 0, 1, 0xC0]))
os.read(0, 1)
os.write(1, b"A" * 9)
while os.read(0, 1000):
    pass
"""


async def test_a_process_that_says_what_is_no_reply_is_ended_and_waited_for_by_nobody(tmp_path: Path) -> None:
    async with box_over(tmp_path) as box:
        ours, box._arguments = box._arguments, ("-c", OTHER)
        with pytest.raises(OSError, match="none of ours"):
            async with asyncio.timeout(60):
                await box.ask(question("SELECT 1"))
        box._arguments = ours
        assert await value_of(box, "SELECT 2") == 2
