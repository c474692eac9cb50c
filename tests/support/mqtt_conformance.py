"""Writes docs/mqtt-conformance.md: which test shows which normative statement of MQTT 5.0.

Tests say it by `@pytest.mark.mqtt("MQTT-3.1.0-1", …)`, or by `@pytest.mark.mqtt(*SHOWN)` where `SHOWN` is a
dictionary at the top of the module: statement → the cases (parameters) of the test that show it. The sources
are read, nothing is run: `make conformance`.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from mqtt_statements import CLIENT, STATEMENTS, WITHOUT_TEST, Statement

ROOT: Final = Path(__file__).parent.parent.parent
PAGE: Final = ROOT / "docs/mqtt-conformance.md"

SECTIONS: Final = {
    "1.5": "Data types (1.5)",
    "2.": "Packets (2)",
    "3.1.": "CONNECT (3.1)",
    "3.2.": "CONNACK (3.2)",
    "3.3.": "PUBLISH (3.3)",
    "3.4": "PUBACK, PUBREC, PUBREL, PUBCOMP (3.4 to 3.7)",
    "3.8": "SUBSCRIBE, SUBACK (3.8, 3.9)",
    "3.10": "UNSUBSCRIBE, UNSUBACK (3.10, 3.11)",
    "3.12": "PINGREQ, DISCONNECT, AUTH (3.12 to 3.15)",
    "4.1.": "Sessions, transport, delivery (4.1 to 4.6)",
    "4.7": "Topics and subscriptions (4.7, 4.8)",
    "4.9": "Flow control, authentication, errors (4.9 to 4.13)",
    "6": "WebSocket (6)",
}
"""Title by how the first statement of a part begins."""

INTRODUCTION: Final = """# Conformance to MQTT 5.0

Every normative statement of the [OASIS standard](https://docs.oasis-open.org/mqtt/mqtt/v5.0/mqtt-v5.0.html)
(its appendix B), in a few words of our own, and the tests that show it at the gateway. Statements that bind
clients only are listed too; where a test is named, it shows what a client that breaks them gets. What bounds
a client, and what it is told, is in [mqtt.md](mqtt.md).

This page is written by `make conformance` from the `mqtt` markers of the tests, and a test fails when it is
not what they say, or when a statement that binds a server has no test.
"""


class Shown(NamedTuple):
    """A test that shows a statement; `cases` are its parameters, none = all of it."""

    path: str
    test: str
    cases: tuple[str, ...]


def _is_marker(node: ast.expr) -> bool:
    return ast.unparse(node) == "pytest.mark.mqtt"


def _tables(module: ast.Module) -> dict[str, dict[str, tuple[str, ...]]]:
    """The dictionaries of strings to tuples of strings at the top of a module."""
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for node in module.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            name, value = node.target.id, node.value
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name, value = node.targets[0].id, node.value
        else:
            continue
        if isinstance(value, ast.Dict):
            try:
                found[name] = ast.literal_eval(value)
            except ValueError:
                continue
    return found


def _arguments(
    call: ast.Call, tables: dict[str, dict[str, tuple[str, ...]]]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    for argument in call.args:
        if isinstance(argument, ast.Starred):
            yield from tables[ast.unparse(argument.value)].items()
        else:
            yield ast.literal_eval(argument), ()


def collect(root: Path = ROOT) -> dict[str, list[Shown]]:
    """The tests by statement, in the order of paths and lines."""
    found: dict[str, list[Shown]] = defaultdict(list)
    for path in sorted((root / "tests").rglob("test_*.py")):
        text = path.read_text()
        if "mark.mqtt(" not in text:
            continue
        module = ast.parse(text)
        tables = _tables(module)
        for node in ast.walk(module):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call) and _is_marker(decorator.func):
                    for name, cases in _arguments(decorator, tables):
                        found[name].append(Shown(str(path.relative_to(root)), node.name, cases))
    return found


def _shown_by(statement: Statement, tests: list[Shown]) -> str:
    lines = []
    for test in tests:
        cases = f" ({'; '.join(test.cases)})" if test.cases else ""
        said = test.test.removeprefix("test_").replace("_", " ")
        lines.append(f"[{said}](../{test.path}){cases.replace('|', chr(92) + '|')}")
    if statement.name in WITHOUT_TEST:
        lines.append(WITHOUT_TEST[statement.name])
    if not lines and statement.binds == CLIENT:
        return "–"
    return "<br>".join(lines)


def page() -> str:
    """The whole page."""
    shown = collect()
    parts = [INTRODUCTION]
    titles = iter(SECTIONS.items())
    begins, title = next(titles)
    for name, statement in STATEMENTS.items():
        if begins and name.removeprefix("MQTT-").startswith(begins):
            parts.append(
                f"\n## {title}\n\n| statement | binds | asks | shown by |\n| --- | --- | --- | --- |\n"
            )
            begins, title = next(titles, ("", ""))
        row = (
            name,
            statement.binds,
            statement.asks.replace("|", "\\|"),
            _shown_by(statement, shown.get(name, [])),
        )
        parts.append(f"| {' | '.join(row)} |\n")
    return "".join(parts)


def problems() -> list[str]:
    """What is wrong with the markers, one sentence each."""
    shown = collect()
    unknown = [
        f"{test.path}::{test.test}: there is no statement {name}"
        for name, tests in shown.items()
        for test in tests
        if name not in STATEMENTS
    ]
    missing = [
        f"{name} binds a server and no test shows it"
        for name, statement in STATEMENTS.items()
        if statement.binds != CLIENT and name not in shown and name not in WITHOUT_TEST
    ]
    both = [f"{name} is said to have no test, and has one" for name in WITHOUT_TEST if name in shown]
    return [*unknown, *missing, *both]


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"{PAGE.relative_to(ROOT)} is written", *problems(), sep="\n")
