"""ARCHITECTURE.md names the folders that there are, and files and tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
SOURCES = ("broker", "gateway", "storage", "holdmq", "registry", "console", "spark_streaming", "loadtest")
LINES_MAX = 200
"""More is not read as a whole."""


def rooms() -> list[str]:
    found = [path.parent for top in SOURCES[:4] for path in (ROOT / top).glob("*/__init__.py")]
    return sorted(str(path.relative_to(ROOT)) for path in found if path.name != "core")


def part_about(top: str) -> str:
    """What the page says of a folder of the top."""
    begin = PAGE.index(f"**`{top}/`**")
    return PAGE[begin : PAGE.index("\n**", begin)]


def test_the_page_can_be_read_as_a_whole() -> None:
    assert len(PAGE.splitlines()) <= LINES_MAX


@pytest.mark.parametrize("room", rooms())
def test_every_room_is_named_under_its_top(room: str) -> None:
    top, _, name = room.partition("/")
    assert f"`{name}/`" in part_about(top)


def test_files_that_it_names_are_there() -> None:
    there = [
        str(path.relative_to(ROOT)) for top in (*SOURCES, "tests") for path in (ROOT / top).rglob("*.py")
    ]
    ours = [f"/{name}" for name in there]
    for named in re.findall(r"`([\w/]+\.py)`", PAGE):
        assert any(name.endswith(f"/{named}") for name in ours), named


def test_every_fault_has_a_test() -> None:
    table = PAGE[PAGE.index("## Failure table") : PAGE.index("## Limits")]
    tests = re.findall(r"^\| .* \| `([^`]+)` \|$", table, re.MULTILINE)
    assert len(tests) == len(re.findall(r"^\| ", table, re.MULTILINE)) - 2
    assert all((ROOT / "tests" / name).exists() for name in tests)
