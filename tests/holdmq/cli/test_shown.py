"""Everything that commands show of devices goes through what makes it visible."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

import holdmq.cli
from holdmq.cli.plain_table import PlainTable
from holdmq.cli.shown import say

MODULES = sorted(Path(holdmq.cli.__path__[0]).glob("*.py"))
WRITERS = {"shown.py", "plain_table.py"}
OWN_WORDS = {
    ("app.py", "sys.stdout.write"),  # the version
    ("app.py", "sys.stderr.write"),  # the error, made visible there
    ("options.py", "sys.stdout.write"),  # JSON, which is ASCII
    ("own_etcd.py", "sys.stderr.write"),  # why there is no server: of the configuration
    ("own_valkey.py", "sys.stderr.write"),  # why there is no server: of the configuration
    ("up.py", "sys.stdout.write"),  # where services are, of the configuration
    ("up.py", "sys.stderr.write"),  # lines of services, made visible there
}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_no_command_writes_by_a_way_of_its_own(path: Path) -> None:
    tree = ast.parse(path.read_text())
    calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    imports = {
        f"{node.module}.{name.name}"
        for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for name in node.names
    }  # fmt: skip
    ways = {
        "typer.echo",
        "typer.secho",
        "print",
        "sys.stdout.write",
        "sys.stderr.write",
        "sys.stdout.buffer.write",
    }
    if path.name not in WRITERS:
        assert {way for way in calls & ways if (path.name, way) not in OWN_WORDS} == set()
        assert "rich.table.Table" not in imports


def test_a_sentence_is_one_line_whatever_its_names(capsys: pytest.CaptureFixture[str]) -> None:
    say("client a\nerror: \x1b[31mb is gone")
    assert capsys.readouterr().out == "client a\\nerror: \\x1b[31mb is gone\n"


def test_a_cell_is_neither_markup_nor_an_escape_sequence() -> None:
    table = PlainTable("client id", "state")
    table.add_row("[link=http://evil]x[/link]", Text("connected", style="green"))
    table.add_row("[/]\x1b]8;;http://evil\x1b\\\\\u202ey", None)
    console = Console(width=120, force_terminal=True, color_system="standard", highlight=False)
    with console.capture() as capture:
        console.print(table)
    shown = capture.get()
    assert "[link=http://evil]x[/link]" in shown
    assert "\\x1b]8;;http://evil\\x1b" in shown
    assert "\\u202ey" in shown
    assert "\x1b]8" not in shown
    assert "\x1b[32mconnected" in shown, "what we style stays so"
