"""Whence the numbers of pages are: each page's rows are its words and what says that they are true.

A source of words with {} for a number, or for each {} one, separated by commas:

- a key of the configuration: its default
- `most:KEY`: the largest value that a key may have
- `module:NAME` or `module:Class.field`: a constant; how many a tuple has, what a struct takes
- `values:a.b`: a value of the chart
- `connack:0x87`: what a client of MQTT 3 is told for it
- a file, `file::test` or `file::ALERT`: a number that it has, in that test or behind that word
- `= …`: arithmetic of the above; `~ …`: the same, rounded

Words without {} are none of ours: the source says whose, or what they are. `from [...] to` is a passage whose
numbers are measured: the source is the command that makes them, as the page itself names it.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from struct import Struct
from typing import Any, Final, NamedTuple

import yaml
from page_blocks import ROOT
from page_facts_of_analysts import ANALYSTS
from page_facts_of_gateways import GATEWAYS
from page_facts_of_operators import OPERATORS
from page_facts_of_others import OTHER_PAGES
from page_numbers import computed, is_one_of, numbers_in, value_of

from holdmq.config.sources import reference
from holdmq.mqtt.reasons import connack_return_code

FACTS: Final[dict[str, list[tuple[str, str]]]] = {**OPERATORS, **GATEWAYS, **ANALYSTS, **OTHER_PAGES}

_KEYS: Final = {row.key: row for row in reference()}
_ROUNDED: Final = 0.05
_ONE: Final = re.compile(r"values:[\w.]+|[a-z_]\w*(?:\.\w+)*:\w+(?:\.\w+)?|[a-z]+(?:\.[a-z_]+)+")


class Fact(NamedTuple):
    """A row of a page."""

    page: str
    words: str
    source: str

    @property
    def is_measured(self) -> bool:
        """Whether a command makes the numbers of this passage."""
        return "[...]" in self.words

    @property
    def is_of_ours(self) -> bool:
        """Whether its numbers are compared with the sources."""
        return "{}" in self.words


def facts() -> list[Fact]:
    """All rows."""
    return [Fact(page, *row) for page, rows in FACTS.items() for row in rows]


def passage_of(text: str, words: str) -> re.Match[str] | None:
    """The shortest passage from the first of these words to the last."""
    first, last = words.split("[...]")
    return re.search(rf"{re.escape(first.strip())}.*?{re.escape(last.strip())}", text)


def is_told_by(said: str, source: str) -> bool:
    """Whether the source has this number."""
    (_, values), *_ = numbers_in(said)
    if re.fullmatch(r"0[0-7]{3}", said):  # a file's mode
        values = [*values, int(said, 8)]
    if source[0] in "=~":
        value = _computed(source[1:].strip())
        if source[0] == "=":
            return is_one_of(values, {value})
        return any(abs(one - value) <= _ROUNDED * value for one in values)
    if source in _KEYS or (re.fullmatch(_ONE, source) and ":" in source):
        return is_one_of(values, {_value_of(source)})
    file, _, test = source.partition("::")
    return is_one_of(values, _numbers_of(ROOT / file, test))


def _computed(expression: str) -> float:
    known = _ONE.sub(lambda one: repr(_value_of(one[0])), expression)
    value = computed(ast.parse(known, mode="eval").body, {})
    assert value is not None, expression
    return value


def _value_of(source: str) -> float:
    module, _, name = source.partition(":")
    if module == "values":
        found: Any = yaml.safe_load((ROOT / "helm/holdmq/values.yaml").read_text(encoding="utf-8"))
        for key in name.split("."):
            found = found[key]
        return float(found)
    if module == "connack":
        return connack_return_code(int(name, 16))
    if module == "most":
        return float(_KEYS[name].range.split()[-1].replace(",", ""))
    found = value_of(module, name) if name else _KEYS[source].default
    if isinstance(found, Struct):
        return float(found.size)
    return float(len(found) if isinstance(found, tuple) else found)


def _numbers_of(path: Path, part: str) -> set[float]:
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        if part:
            text = text[text.index(part) :].partition("\n## " if path.suffix == ".md" else "- alert:")[0]
        text = re.sub(r"(\d)(s|m|h)\b", lambda one: f"{one[1]} {'min' if one[2] == 'm' else one[2]}", text)
        return {value for _, values in numbers_in(re.sub(r"[:/=<>-]", " ", text)) for value in values}
    module = ast.parse(text)
    nodes: list[ast.AST] = [module]
    if part:
        nodes = [
            node for node in ast.walk(module) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        nodes = [node for node in nodes if getattr(node, "name", "") == part]
        assert nodes, f"{path} has no {part}"
    docs = {id(node.value) for node in ast.walk(module) if isinstance(node, ast.Expr)}
    found: set[float] = set()
    for node in (inner for outer in nodes for inner in ast.walk(outer)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            found |= {value for _, values in numbers_in(node.value) for value in values}
        value = computed(node, {})
        found |= set() if value is None else {value}
    return found
