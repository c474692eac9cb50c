"""What pages say about bounds and defaults is what the code has."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import NamedTuple

import pytest
from page_blocks import ROOT, pages
from page_numbers import (
    DEFAULT,
    is_one_of,
    literals_of,
    numbers_in,
    sayings_in,
    text_of,
    unknown_numbers,
    value_of,
)
from page_sayings import OTHERS, SAYINGS

from gateway.deliver.catchup import ANSWERS_PER_TURN, CATCHUP_CREDIT_BYTES
from holdmq.client.faults import LATENCIES_MS, RESTS_MS
from holdmq.config.sources import reference
from holdmq.names.rooms import room_fault
from holdmq.wire.move_headers import DELAY_LEVELS_MS

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


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.name)
def test_a_default_that_a_page_says_behind_its_key_is_the_default(path: Path) -> None:
    for key, said in DEFAULT.findall(path.read_text(encoding="utf-8")):
        if key in DEFAULTS and "=" not in said:
            (number, values), *_ = numbers_in(said)
            assert is_one_of(values, {float(DEFAULTS[key])}), f"{key} is {DEFAULTS[key]}, not {number}"


@pytest.mark.parametrize("page", OTHERS)
def test_every_number_of_a_page_is_in_a_row(page: str) -> None:
    text = text_of(page)
    known = [match.span(1) for of, words, _ in SAYINGS if of == page for match in sayings_in(text, words)]
    for words in OTHERS[page]:
        assert words in text, f"{page}.md does not say {words!r}; if it says it otherwise, so does its row"
        known += [match.span() for match in re.finditer(re.escape(words), text)]
    for said in unknown_numbers(text, known):
        pytest.fail(f"{said!r}: a row of tests/support/page_sayings.py says where the code has it")


@pytest.mark.parametrize(("page", "words", "where"), SAYINGS)
def test_a_number_of_a_sentence_is_the_code_s(page: str, words: str, where: str) -> None:
    found = [match[1] for match in sayings_in(text_of(page), words)]
    assert found, f"{page}.md does not say {words!r}; if it says it otherwise, so does its row"
    module, _, name = where.partition(":")
    value = value_of(module, name) if name else DEFAULTS[where]
    for said in found:
        (_, values), *_ = numbers_in(said)
        assert is_one_of(values, {float(value)}), f"{said} is {value} at {where}"


def seconds(text: str) -> float:
    (_, values), *_ = numbers_in(text)
    return values[0] if not text.endswith(" ms") else values[1] / 1000


def test_the_levels_of_retry_md_are_those_of_the_code() -> None:
    text = (ROOT / "docs/retry.md").read_text(encoding="utf-8")
    levels, delays = (
        [cell.strip() for cell in row.split("|")[2:-1]]
        for row in re.findall(r"^\| (?:level|delay) \|.*$", text, re.MULTILINE)
    )
    told = dict(zip(levels, delays, strict=True))
    assert told.pop("5 … 14") == "1 … 10 min"
    said = {int(level): seconds(delay) for level, delay in told.items()}
    said |= {level: 60.0 * (level - 4) for level in range(5, 15)}
    assert {level: 1000 * delay for level, delay in said.items()} == dict(enumerate(DELAY_LEVELS_MS, 1))


def test_how_long_a_broker_rests_is_as_producer_md_says() -> None:
    text = (ROOT / "docs/producer.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d[\d.]* m?s)(?:, [^|]*)? \| (\d[\d.]* m?s) \|$", text, re.MULTILINE)
    rests = {round(1000 * seconds(took)): round(1000 * seconds(rest)) for took, rest in rows}
    assert rests == {took: rest for took, rest in zip(LATENCIES_MS, RESTS_MS, strict=True) if rest}


def test_names_of_rooms_are_as_long_as_consumers_md_says() -> None:
    assert "Names are 1 to 64 of" in text_of("consumers")
    assert room_fault("a" * 64) is None
    assert room_fault("a" * 65)
