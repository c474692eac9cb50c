"""What pages say about bounds and defaults is what the code has."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import NamedTuple

import pytest
from page_blocks import ROOT, pages
from page_numbers import is_one_of, literals_of, numbers_in
from page_sayings import SAYINGS

from gateway.deliver.catchup import ANSWERS_PER_TURN, CATCHUP_CREDIT_BYTES
from holdmq.config.sources import reference

DEFAULTS = {row.key: row.default for row in reference()}
ALL = {row.key: row for row in reference()}


ELSEWHERE = {
    "its depth": {1_024},  # the decoder's own
    "kept for a session whose window is full": {float(CATCHUP_CREDIT_BYTES * ANSWERS_PER_TURN)},
    "counts by name: topics": {3_300},  # measured, as the others
    "counts by name: queues": {3_300},
    "counts by name: groups": {3_300},
    "counts by name: topics of groups": {3_300},
    "counts by name: clients": {3_300},
    "counts by name: access keys": {3_300},
}
"""Bounds of limits.md that no file of ours writes as a number."""


class Bound(NamedTuple):
    """A row of limits.md."""

    section: str
    what: str
    bound: str
    where: list[str]


def bounds() -> list[Bound]:
    found, section = [], ""
    for line in (ROOT / "docs/limits.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            section = line
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) == 3 and "`" in cells[2]:
            found.append(Bound(section, cells[0], cells[1], re.findall(r"`([^`]+)`", cells[2])))
    return found


def folder_of(section: str) -> list[Path]:
    return [ROOT / name for name in re.findall(r"`([^`]+)/`", section)] + [ROOT]


def known_at(bound: Bound) -> set[float]:
    """The numbers of the files and keys that a row names."""
    known: set[float] = set()
    for name in bound.where:
        if name.endswith(".py"):
            files = [folder / name for folder in folder_of(bound.section) if (folder / name).exists()]
            assert files, f"{bound.what}: {name} is not below {bound.section}"
            module = importlib.import_module(".".join(files[0].relative_to(ROOT).with_suffix("").parts))
            known |= literals_of(files[0], vars(module))
        elif name in DEFAULTS:
            default = DEFAULTS[name]
            known |= {float(default)} if isinstance(default, int | float) else set()
            known |= {float(n.replace(",", "")) for n in re.findall(r"\d[\d,.]*\d|\d", ALL[name].range)}
        else:
            known |= {float("nan")}
    return known


@pytest.mark.parametrize("bound", bounds(), ids=lambda bound: bound.what[:50])
def test_a_bound_of_limits_md_is_one_of_its_file_or_key(bound: Bound) -> None:
    known = known_at(bound) | ELSEWHERE.get(bound.what, set())
    for said, values in numbers_in(re.sub("[¹²³⁴⁵⁶]", "", bound.bound)):
        assert is_one_of(values, known), f"{said} is not in {bound.where}"


DEFAULT = re.compile(r"`([a-z]+(?:\.[a-z_]+)+)`\s\((\d[^);:]*)")


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.name)
def test_a_default_that_a_page_says_behind_its_key_is_the_default(path: Path) -> None:
    for key, said in DEFAULT.findall(path.read_text(encoding="utf-8")):
        if key in DEFAULTS and "=" not in said:
            (number, values), *_ = numbers_in(said)
            assert is_one_of(values, {float(DEFAULTS[key])}), f"{key} is {DEFAULTS[key]}, not {number}"


@pytest.mark.parametrize(("page", "words", "where"), SAYINGS)
def test_a_number_of_a_sentence_is_the_code_s(page: str, words: str, where: str) -> None:
    text = " ".join((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8").split())
    before, _, after = words.partition("{}")
    number = r"(\d[\d,.]*(?: (?:bytes|[KMG]iB|ms|s|min|minutes|h|hours|days?|%)(?!\w))?)"
    found = re.findall(rf"{re.escape(before)}{number}{re.escape(after)}", text)
    assert found, f"{page}.md does not say {words!r}; if it says it otherwise, so does its row"
    module, _, name = where.partition(":")
    value = getattr(importlib.import_module(module), name) if name else DEFAULTS[where]
    for said in found:
        (_, values), *_ = numbers_in(said)
        assert is_one_of(values, {float(value)}), f"{said} is {value} at {where}"
