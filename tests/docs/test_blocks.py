"""Each fenced block of the pages is run by the test that its row names, or understood here."""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import duckdb
import jsonschema
import pytest
import typer.main
import yaml
from command_line import run_here
from page_blocks import (
    BLOCKS,
    CALL,
    COMMANDS,
    CONFIGURATION,
    KEYS,
    MAKE,
    MANIFEST,
    OF_OTHERS,
    QUERY,
    ROOT,
    VALUES,
    Block,
    blocks_of,
    pages,
    words_of,
)

import holdmq.client
from holdmq.alarms.notices import Notice
from holdmq.cli.app import command_line
from holdmq.config.sources import load
from holdmq.credentials.access_keys import load_keys
from loadtest.cli import app as loadtest
from spark_streaming.tables import TPS_1S_TABLE

TESTS = ROOT / "tests"


def run_as(kind: str) -> list[Block]:
    """The blocks whose row says this."""
    rows = [
        (block, by)
        for path in pages()
        for block, (_, by) in zip(blocks_of(path), BLOCKS.get(str(path.relative_to(ROOT)), ()), strict=False)
    ]
    found = [block for block, by in rows if by == kind]
    assert found
    return found


def named(block: Block) -> str:
    return f"{block.page}:{block.line}"


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.name)
def test_every_block_has_its_row(path: Path) -> None:
    page = str(path.relative_to(ROOT))
    assert [block.language for block in blocks_of(path)] == [language for language, _ in BLOCKS.get(page, ())]
    fences = re.findall(r"^ *```", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(fences) == 2 * len(BLOCKS.get(page, ()))


@pytest.mark.parametrize(
    ("page", "by"),
    sorted({(page, by) for page, rows in BLOCKS.items() for _, by in rows if "::" in by}),
)
def test_who_runs_a_block_exists_and_names_its_page(page: str, by: str) -> None:
    file, _, name = by.partition("::")
    source = (TESTS / file).read_text(encoding="utf-8")
    functions = {node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)}
    assert name in functions
    assert Path(page).name in source


def understood(words: list[str]) -> None:
    """Have `holdmq` parse a command and do nothing; raises its error for what it does not know."""
    command: Any = typer.main.get_command(loadtest if words[0] == "loadtest" else command_line(words[0]))
    name, rest = ("loadtest", words[1:]) if words[0] == "loadtest" else ("holdmq", words)
    context = None
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        assert rest[0] in command.commands, f"{name} has no command {rest[0]!r}"
        context = command.context_class(command, info_name=name, parent=context)
        name, command, rest = rest[0], command.commands[rest[0]], rest[1:]
    parsed = command.make_context(name, rest, parent=context)
    load(sets=parsed.params.get("sets") or (), environ={})


NOT_WHOLE = ("MissingParameter", "NoArgsIsHelpError")
"""What the command line says of a command whose arguments, or subcommand, a sentence leaves out."""


def fault_of(words: list[str]) -> str | None:
    """What the command line has against a command, but for what a sentence leaves out; None = nothing."""
    try:
        understood(words)
    except Exception as error:  # noqa: BLE001 # typer has a click of its own, which it does not show
        is_short = type(error).__name__ in NOT_WHOLE or "requires an argument" in str(error)
        return None if is_short else f"{type(error).__name__}: {error}"
    return None


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.name)
def test_commands_in_sentences_have_the_options_that_they_are_given(path: Path) -> None:
    text = re.sub(r"^ *```.*?^ *```$", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for said in re.findall(r"`holdmq ([^`|…]+)`", text):
        words = shlex.split(re.sub(r"\bN\b", "10", re.sub(r"[\[\]]", "", said)))
        if words[0] in typer.main.get_command(command_line()).commands and len(words) > 1:  # type: ignore[attr-defined]
            assert fault_of(words) is None, said


class _UnderstoodError(Exception):
    """The program has parsed its command line."""


def understood_by_module(words: list[str]) -> None:
    """Have the program `python -m MODULE …` parse its command line, and no more."""
    originals = argparse.ArgumentParser.parse_args, argparse.ArgumentParser.parse_intermixed_args

    def parse(parser: argparse.ArgumentParser, *given: Any) -> Any:
        originals[0](parser, *given)
        raise _UnderstoodError

    def parse_intermixed(parser: argparse.ArgumentParser, *given: Any) -> Any:
        originals[1](parser, *given)
        raise _UnderstoodError

    with (
        mock.patch.object(sys, "argv", words),
        mock.patch.object(argparse.ArgumentParser, "parse_args", parse),
        mock.patch.object(argparse.ArgumentParser, "parse_intermixed_args", parse_intermixed),
        pytest.raises(_UnderstoodError),
    ):
        runpy.run_module(words[0], run_name="__main__", alter_sys=False)


OTHER_PROGRAMS = {"kubectl", "helm"}
"""Who is called in the same blocks as `holdmq`."""


@pytest.mark.parametrize("block", run_as(COMMANDS), ids=named)
def test_commands_that_no_test_runs_are_understood(block: Block) -> None:
    commands = words_of(block)
    assert commands
    for words in commands:
        while re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words = words[1:]
        if words[0] == "holdmq":
            understood(words[1:])
        elif words[0].endswith("python") and words[1] == "-m":
            understood_by_module(words[2:])
        else:
            assert words[0] in OTHER_PROGRAMS, words


@pytest.mark.parametrize("block", run_as(OF_OTHERS), ids=named)
def test_commands_of_other_programs_are_a_shell_s(block: Block) -> None:
    done = subprocess.run(["bash", "-n"], input=block.text, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("block", run_as(CONFIGURATION), ids=named)
def test_a_configuration_is_one(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "holdmq.toml"
    file.write_text(block.text, encoding="utf-8")
    load(file, environ={})


@pytest.mark.parametrize("block", run_as(CALL), ids=named)
def test_a_call_of_the_sdk_takes_its_arguments(block: Block) -> None:
    call = ast.parse(block.text, mode="eval").body
    assert isinstance(call, ast.Call)
    assert isinstance(call.func, ast.Name)
    called = getattr(holdmq.client, call.func.id)
    inspect.signature(called).bind(*call.args, **{str(one.arg): one.value for one in call.keywords})


@pytest.mark.parametrize("block", run_as(KEYS), ids=named)
def test_keys_are_keys(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(block.text, encoding="utf-8")
    file.chmod(0o600)
    assert load_keys(file)


@pytest.mark.parametrize("block", run_as(VALUES), ids=named)
def test_values_are_of_the_chart(block: Block) -> None:
    schema = json.loads((ROOT / "helm/holdmq/values.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft7Validator(schema).validate(yaml.safe_load(block.text))


@pytest.mark.parametrize("block", run_as(MANIFEST), ids=named)
def test_an_object_of_kubernetes_has_a_kind_and_a_name(block: Block) -> None:
    for one in yaml.safe_load_all(block.text):
        assert one["apiVersion"]
        assert one["kind"]
        assert one["metadata"]["name"]


@pytest.mark.parametrize("block", run_as(MAKE), ids=named)
def test_the_makefile_has_the_target(block: Block) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for program, target in words_of(block):
        assert program == "make"
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


@pytest.mark.parametrize("block", run_as(QUERY), ids=named)
def test_a_query_of_the_console_runs(block: Block) -> None:
    tps_1s = TPS_1S_TABLE.schema.empty_table()
    assert duckdb.from_arrow(tps_1s).query("tps_1s", block.text).fetchall() == []


def test_the_alarm_of_alarms_md_has_the_members_of_a_notice() -> None:
    (block,) = (block for block in blocks_of(ROOT / "docs/alarms.md") if block.language == "json")
    told = json.loads(block.text)
    assert told.keys() == {"broker", "alarms"}
    for alarm in told["alarms"]:
        assert alarm.keys() == {*Notice._fields, "kind", "name"} - {"key"}


def test_the_accounts_of_console_md_are_made(tmp_path: Path) -> None:
    (block,) = (block for block in blocks_of(ROOT / "docs/console.md") if block.language == "bash")
    there = f"--set=console.data_dir={tmp_path / 'console'}"
    assert run_here("console", "user", "add", "admin", "--role", "admin", there).returncode == 0
    for words in words_of(block):
        done = run_here(*words[1:], there)
        assert done.returncode == 0, done.stderr
        assert done.stdout


def test_the_client_of_security_md_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of the example but its broker, which is another machine."""
    (block,) = (block for block in blocks_of(ROOT / "docs/security.md") if block.language == "python")
    monkeypatch.chdir(tmp_path)
    Path("orders.secret").write_text("s" * 43, encoding="utf-8")
    Path("orders.secret").chmod(0o600)
    before, _, sent = block.text.partition("async with")
    names: dict[str, Any] = {}
    exec(compile(before, block.page, "exec"), names)
    assert names["security"].read_secret() == b"s" * 43
    compile(block.text, block.page, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    assert "security=security" in sent
