"""Each number of a page has its row in `page_facts`, and what the row names says so."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from page_blocks import ROOT, pages
from page_facts import FACTS, Fact, facts, is_told_by, passage_of
from page_numbers import path_of, sayings_in, text_of, unknown_numbers
from page_sayings import OTHERS

from holdmq.mqtt.reasons import connack_return_code

OF_MQTT_3 = re.compile(r"0x([0-9A-F]{2})\b([^0]{0,20})(?:3\.x|MQTT 3): (\d)(?!x)")
"""What a client of MQTT 5 is told, and one of MQTT 3."""


def named(fact: Fact) -> str:
    return f"{fact.page}: {fact.words[:60]}"


@pytest.mark.parametrize("page", FACTS)
def test_every_number_of_a_page_has_a_row(page: str) -> None:
    text = text_of(page)
    known = [match.span(3) for match in OF_MQTT_3.finditer(text)]
    for words, _ in FACTS[page]:
        if "[...]" in words:
            passage = passage_of(text, words)
            known += [passage.span()] if passage else []
        elif "{}" in words:
            known += [
                match.span(n + 1) for match in sayings_in(text, words) for n in range(words.count("{}"))
            ]
        else:
            known += [match.span() for match in re.finditer(re.escape(words), text)]
    assert list(unknown_numbers(text, known)) == []


@pytest.mark.parametrize("fact", facts(), ids=named)
def test_a_number_of_a_page_is_what_its_row_says(fact: Fact) -> None:
    text = text_of(fact.page)
    if fact.is_measured:
        assert passage_of(text, fact.words), (
            f"{fact.page}.md has no such passage; so its row is another one now"
        )
        assert fact.source in text, f"{fact.page}.md does not name the command that makes its figures"
        return
    found = sayings_in(text, fact.words)
    assert found, f"{fact.page}.md does not say {fact.words!r}; if it says it otherwise, so does its row"
    assert fact.source
    if not fact.is_of_ours:
        for file in re.findall(r"[\w/]+/[\w.]+\.(?:py|md|js|mod)\b", fact.source):
            assert (ROOT / file).exists(), file
        return
    sources = fact.source.split(", ")
    for match in found:
        assert len(sources) in (1, len(match.groups()))
        for n, said in enumerate(match.groups()):
            source = sources[n % len(sources)]
            assert is_told_by(said, source), f"{said} is not what {source} has"


BY_THEMSELVES = {"configuration", "metrics", "http-api", "mqtt-conformance", "limits", "performance"}
"""Pages that are written from the code, or have tests of their own."""


def test_every_page_s_numbers_are_looked_after() -> None:
    there = {path.stem for path in pages()}
    assert there == BY_THEMSELVES | FACTS.keys() | OTHERS.keys()


def test_every_section_of_performance_md_has_its_command() -> None:
    text = path_of("performance").read_text(encoding="utf-8")
    for section in text.split("\n## ")[1:]:
        assert re.search(r"python -m (loadtest|replica)|holdmq loadtest", section), section.partition("\n")[0]


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.name)
def test_modules_that_a_page_runs_are_there(path: Path) -> None:
    text = re.sub(r"\s+", " ", path.read_text(encoding="utf-8"))
    for module in re.findall(r"python3? -m ([a-z][\w.]*)", text):
        assert importlib.util.find_spec(module) is not None, module


@pytest.mark.parametrize("page", FACTS)
def test_what_clients_of_mqtt_3_are_told_is_as_a_page_says(page: str) -> None:
    for code, _, said in OF_MQTT_3.findall(text_of(page)):
        assert connack_return_code(int(code, 16)) == int(said), code
