"""Concepts, operating, troubleshooting and Valkey name sentences, metrics, keys and commands that exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer.main
from references import declared_metrics

from holdmq.cli.app import command_line
from holdmq.config.sources import reference
from loadtest.cli import app as loadtest

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "docs" / name for name in ("concepts.md", "operating.md", "troubleshooting.md", "valkey.md")]
SERVICES = ("holdmq", "gateway", "broker", "registry", "storage", "console", "spark_streaming")


def sources() -> str:
    """All that the product may say: its sources, with strings that go on in the next line joined."""
    texts = (path.read_text(encoding="utf-8") for name in SERVICES for path in (ROOT / name).rglob("*.py"))
    return re.sub(r'"\s*(\+ )?\n\s*f?"', "", "\n".join(texts))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_metrics_and_keys_and_commands_are_real(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    metrics = {metric.name for metric in declared_metrics()}
    for name in re.findall(r"\bholdmq_[a-z0-9_]+", text):
        assert name in metrics, name
    keys = {row.key for row in reference()}
    sections = {key.partition(".")[0] for key in keys}
    for key in re.findall(r"`([a-z]+(?:\.[a-z_]+)+)\b(?!\.md)", text):
        if key.partition(".")[0] in sections:
            assert key in keys, key
    for section, rest in re.findall(r"`holdmq ([a-z]+)((?: [a-z]+)?)", text):
        group: Any = typer.main.get_command(loadtest if section == "loadtest" else command_line(section))
        command = group if section == "loadtest" else group.commands[section]
        if rest and hasattr(command, "commands"):
            assert rest.strip() in command.commands, (section, rest)


def test_what_is_quoted_is_what_the_product_says() -> None:
    said = sources()
    quotes = re.findall(r"^> (.+)$", PAGES[2].read_text(encoding="utf-8"), re.MULTILINE)
    assert len(quotes) > 10
    for quote in quotes:
        for part in quote.split("…"):
            assert part.strip() in said, part


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere_and_lines_are_short(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        assert (path.parent / target).exists(), target
    assert max(map(len, text.splitlines())) <= 100
