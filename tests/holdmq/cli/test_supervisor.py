"""The supervisor over real children: small services that do as their script says."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import psutil
import pytest
from processes import free_port

from holdmq.cli.supervisor import (
    LINE_MAX_BYTES,
    RESTART_DELAY_MAX_S,
    ServiceCommand,
    ServiceSupervisor,
    ask_readyz,
    describe_exit,
    restart_delay_s,
)
from holdmq.errors import ConfigError, StartupError

SERVICE = """
import asyncio, os, signal, sys, time
from pathlib import Path
from holdmq.config.model import Config, RegistrySection
from holdmq.errors import ConfigError, StartupError
from holdmq.service.process import run_service

here = Path(__file__).parent
name = sys.argv[1]

async def main(config, service):
    print(f"{name} is process {os.getpid()}", flush=True)
{body}
    service.ready(lambda: (True, ""))
    await service.stopping.wait()
{drain}
    print(f"{name} drained", flush=True)

config = Config(registry=RegistrySection(admin_port=int(sys.argv[2])))
sys.exit(run_service("registry", config, main))
"""


class Stage:
    """A supervisor, what it said, and the children that a test describes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.lines: list[str] = []
        self.stopping = asyncio.Event()
        self.supervisor = ServiceSupervisor(
            lambda name, line: self.lines.append(f"{name}: {line}"), self.stopping
        )

    def child(
        self, name: str, body: str = "", drain: str = "", *, limit_s: float = 60, essential: bool = True
    ) -> ServiceCommand:
        script = self.directory / f"{name}.py"
        script.write_text(
            SERVICE.replace("{body}", f"    {body}").replace("{drain}", f"    {drain}"), encoding="utf-8"
        )
        port = free_port()
        argv = [sys.executable, str(script), name, str(port)]
        return ServiceCommand(name, argv, partial(ask_readyz, "127.0.0.1", port), limit_s, essential)

    async def said(self, pattern: str, times: int = 1) -> re.Match[str]:
        """Wait until `times` lines match `pattern`; return the last match."""
        while True:
            found = [match for line in self.lines if (match := re.search(pattern, line))]
            if len(found) >= times:
                return found[times - 1]
            await asyncio.sleep(0.02)


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    stage.supervisor.kill()
    await stage.supervisor.stop()


async def test_children_are_ready_then_drain_in_reverse_order(stage: Stage) -> None:
    for name in ("a", "b", "c"):
        stage.supervisor.start(stage.child(name))
        assert await stage.supervisor.wait_ready(name)
    await stage.supervisor.stop()
    drained = [line for line in stage.lines if line.endswith("drained")]
    assert drained == ["c: c drained", "b: b drained", "a: a drained"]


async def test_a_killed_child_is_restarted_and_said_so(stage: Stage) -> None:
    stage.supervisor.start(stage.child("a"))
    assert await stage.supervisor.wait_ready("a")
    first = await stage.said(r"a is process (\d+)")
    os.kill(int(first[1]), signal.SIGKILL)
    await stage.said(r"up: a was killed by SIGKILL; restart 1 in 0\.5 s")
    second = await stage.said(r"a is process (\d+)", times=2)
    os.kill(int(second[1]), signal.SIGKILL)
    await stage.said(r"up: a was killed by SIGKILL; restart 2 in 1 s")
    await stage.said(r"a is process (\d+)", times=3)


async def test_what_a_dead_child_had_forked_is_gone_before_its_restart(stage: Stage) -> None:
    body = 'import subprocess; print("grandchild", subprocess.Popen(["sleep", "60"]).pid, flush=True)'
    stage.supervisor.start(stage.child("a", body))
    assert await stage.supervisor.wait_ready("a")
    os.kill(int((await stage.said(r"a is process (\d+)"))[1]), signal.SIGKILL)
    await stage.said("restart 1")
    await until_gone(int((await stage.said(r"grandchild (\d+)"))[1]))


async def until_gone(pid: int) -> None:
    """Wait until process `pid` is gone, or a zombie that nobody here reaps."""
    while psutil.pid_exists(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return
        await asyncio.sleep(0.02)


async def test_a_program_that_is_not_there_is_said(stage: Stage) -> None:
    child = stage.child("a")
    absent = ServiceCommand(child.name, ["/no/such/program"], child.ask_ready, child.stop_limit_s)
    stage.supervisor.start(absent)
    assert not await stage.supervisor.wait_ready("a")
    assert "up: a cannot be started: No such file or directory: /no/such/program" in stage.lines
    assert stage.supervisor.refusal is not None


async def test_an_essential_child_that_refuses_to_start_ends_everything(stage: Stage) -> None:
    stage.supervisor.start(stage.child("a", 'raise StartupError("the store is of a newer format")'))
    assert not await stage.supervisor.wait_ready("a")
    assert isinstance(stage.supervisor.refusal, StartupError)
    assert str(stage.supervisor.refusal) == "a ended with exit code 1 at its start; its line above says why"
    assert any("the store is of a newer format" in line for line in stage.lines)


async def test_a_wrong_configuration_ends_everything_as_such(stage: Stage) -> None:
    stage.supervisor.start(stage.child("a", 'raise ConfigError("no such thing")', essential=False))
    assert not await stage.supervisor.wait_ready("a")
    assert isinstance(stage.supervisor.refusal, ConfigError)


async def test_a_child_that_others_can_do_without_is_tried_again(stage: Stage) -> None:
    body = """
    mark = here / "tried"
    if not mark.exists():
        mark.touch()
        raise StartupError("not yet")
"""
    stage.supervisor.start(stage.child("a", body, essential=False))
    assert await stage.supervisor.wait_ready("a")
    assert "up: a ended with exit code 1; restart 1 in 0.5 s" in stage.lines


async def test_a_child_that_does_not_drain_is_killed_and_said_so(stage: Stage) -> None:
    stage.supervisor.start(stage.child("a", drain="await asyncio.sleep(60)", limit_s=0.3))
    assert await stage.supervisor.wait_ready("a")
    await stage.supervisor.stop()
    assert "up: a has not drained within 0.3 s and is killed" in stage.lines


async def test_a_stop_while_a_child_starts_leaves_nothing_behind(stage: Stage) -> None:
    stage.supervisor.start(stage.child("a"))
    await stage.supervisor.stop()
    assert not any("restart" in line for line in stage.lines)


async def test_killing_at_once_is_said(stage: Stage) -> None:
    stage.supervisor.start(stage.child("a", drain="await asyncio.sleep(60)", limit_s=60))
    assert await stage.supervisor.wait_ready("a")
    stopping = asyncio.create_task(stage.supervisor.stop())
    await stage.said("draining")
    stage.supervisor.kill()
    await stopping
    assert "up: a is killed before it has drained" in stage.lines


async def test_the_reason_is_said_while_a_child_is_not_ready(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdmq.cli.supervisor.WAITING_NOTE_S", 0.3)
    body = 'service.ready(lambda: ((here / "go").exists(), "waits for a friend"))'
    stage.supervisor.start(stage.child("a", body))
    waiting = asyncio.create_task(stage.supervisor.wait_ready("a"))
    await stage.said("up: a is not ready after .*: waits for a friend")
    (stage.directory / "go").touch()
    assert await waiting


async def test_a_line_longer_than_the_bound_comes_in_parts(stage: Stage) -> None:
    size = 3 * LINE_MAX_BYTES
    stage.supervisor.start(stage.child("a", f'print("x" * {size}, flush=True)'))
    assert await stage.supervisor.wait_ready("a")
    await stage.said("^a: x+$", times=2)
    assert sum(line.count("x") for line in stage.lines if re.fullmatch("a: x+", line)) == size


async def test_children_end_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    child = stage.child("a")
    script = tmp_path / "supervise.py"
    script.write_text(
        f"""
import asyncio
from functools import partial
from holdmq.cli.supervisor import ServiceCommand, ServiceSupervisor, ask_readyz

async def main():
    supervisor = ServiceSupervisor(lambda name, line: print(line, flush=True), asyncio.Event())
    ready = partial(ask_readyz, "127.0.0.1", {int(child.argv[-1])})
    supervisor.start(ServiceCommand({child.name!r}, {child.argv!r}, ready, 60))
    await supervisor.wait_ready("a")
    print("all ready", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""
    )
    process = await asyncio.create_subprocess_exec(sys.executable, script, stdout=subprocess.PIPE)
    assert process.stdout is not None
    pid = 0
    while (line := (await process.stdout.readline()).decode().strip()) != "all ready":
        assert line, "the supervisor ended"
        if found := re.search(r"a is process (\d+)", line):
            pid = int(found[1])
    process.kill()
    await process.wait()
    await until_gone(pid)


@pytest.mark.parametrize(
    ("failures", "delay_s"), [(0, 0.5), (1, 0.5), (2, 1), (3, 2), (99, RESTART_DELAY_MAX_S)]
)
def test_the_pause_before_a_restart_doubles_up_to_its_bound(failures: int, delay_s: float) -> None:
    assert restart_delay_s(failures) == delay_s


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "ended with exit code 0"),
        (3, "ended with exit code 3"),
        (-15, "was killed by SIGTERM"),
        (-99, "was killed by signal 99"),
    ],
)
def test_an_end_is_told_in_words(code: int, words: str) -> None:
    assert describe_exit(code) == words
