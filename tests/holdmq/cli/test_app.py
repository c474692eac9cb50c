from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main

import holdmq as package
from holdmq.cli.app import command_line
from holdmq.cli.hints import HINTS, with_hint
from holdmq.config.sources import reference
from holdmq.errors import Code, RemoteError, UsageError
from loadtest.cli import app as loadtest


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command of the tree with the words that reach it."""
    yield path, group
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, (*path, name))


def shape(command: Any) -> list[Any]:
    """What a command and those below it are called, say and take."""
    return [
        (path, part.help, [(parameter.name, parameter.opts) for parameter in part.params])
        for path, part in commands(command)
    ]


ALL = [
    *commands(typer.main.get_command(command_line())),
    *commands(typer.main.get_command(loadtest), ("loadtest",)),
]


@pytest.mark.parametrize(("path", "command"), ALL, ids=[" ".join(path) or "holdmq" for path, _ in ALL])
def test_every_command_says_what_it_does_and_shows_an_example(path: tuple[str, ...], command: Any) -> None:
    assert command.help
    assert (command.epilog or "").startswith("Example: holdmq ")


@pytest.mark.parametrize("name", [path[0] for path, _ in ALL if len(path) == 1 and path != ("loadtest",)])
def test_a_command_that_is_loaded_alone_is_the_same(name: str) -> None:
    group: Any = typer.main.get_command(command_line(name))
    assert set(group.commands) == {name}
    assert shape(group.commands[name]) == shape(dict(ALL)[name,])


@pytest.mark.parametrize(
    ("path", "command"),
    [pair for pair in ALL if pair[1].params and not hasattr(pair[1], "commands")],
    ids=str,
)
def test_every_command_can_answer_in_json(path: tuple[str, ...], command: Any) -> None:
    assert "--json" in [option for parameter in command.params for option in parameter.opts]


def test_every_code_that_has_a_hint_names_commands_and_keys_that_there_are() -> None:
    keys = {row.key for row in reference()}
    for hint in HINTS.values():
        for named in re.findall(r"`holdmq ([a-z ]+[a-z])", hint):
            assert tuple(named.split()[:2]) in dict(ALL), hint
        for named in re.findall(r"\b[a-z]+\.[a-z_]+\b", hint):
            assert named in keys, hint


def test_a_refusal_says_what_to_do() -> None:
    refused = RemoteError(Code.GROUP_UNKNOWN, "group 'g' does not exist here")
    assert with_hint(refused) == f"GROUP_UNKNOWN: group 'g' does not exist here; {HINTS[Code.GROUP_UNKNOWN]}"
    named = RemoteError(Code.GROUP_UNKNOWN, "group 'g' is not here: `holdmq group create` makes it")
    assert with_hint(named) == str(named)
    assert with_hint(UsageError("no group is given")) == "no group is given"


def test_the_version_is_the_packages(holdmq_process: Any) -> None:
    assert holdmq_process("--version").stdout == f"holdmq {package.__version__}, sources\n"


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["up", "--nonsense"], ["config", "show", "--set", "gateway.prot=1"]]
)
def test_wrong_use_exits_2_without_a_traceback(holdmq_process: Any, arguments: list[str]) -> None:
    done = holdmq_process(*arguments)
    assert done.returncode == 2
    assert done.stderr
    assert "Traceback" not in done.stderr


def test_a_bug_is_a_sentence_and_on_demand_a_traceback() -> None:
    program = (
        "import sys; from holdmq.cli import app; app.command_line = lambda _: lambda **_: 1 / 0; app.main()"
    )
    environ = {**os.environ, "PYTHONPATH": ""}
    arguments = [sys.executable, "-c", program]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, env=environ)
    assert done.returncode == 1
    assert done.stderr.startswith("error: this is a bug: ZeroDivisionError")
    assert len(done.stderr.splitlines()) == 1
    loud = {**environ, "HOLDMQ_TRACEBACK": "1"}
    assert (
        "Traceback" in subprocess.run(arguments, capture_output=True, text=True, check=False, env=loud).stderr
    )


def test_a_reader_that_has_seen_enough_is_no_error_message() -> None:
    shell = f"{sys.executable} -P -m holdmq.cli config keys --json | head -c 10"
    done = subprocess.run(shell, shell=True, capture_output=True, text=True, check=False)  # noqa: S602 # ours
    assert done.stderr == ""


def test_the_command_line_loads_no_service_and_no_jvm_library() -> None:
    program = (
        "import sys; from holdmq.cli.app import command_line; command_line(); "
        "heavy = {'gateway', 'broker', 'storage', 'registry', 'console', 'loadtest', "
        "'spark_streaming', 'pyspark', 'pyarrow', 'matplotlib', 'numpy'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_command_loads_no_other_and_a_service_nothing_that_draws_tables() -> None:
    program = (
        "import sys; from holdmq.cli.app import command_line; command_line('broker'); "
        "others = {'holdmq.cli.topic', 'holdmq.cli.up', 'holdmq.rpc.client', 'rich'}; "
        "print(sorted(others & set(sys.modules))); "
        "import rich.table"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
