"""The pages name sentences, metrics, keys and commands that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from references import declared_metrics

from holdmq.cli.app import command_line
from holdmq.config.sources import reference
from loadtest.cli import app as loadtest

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").glob("*.md"))]
SERVICES = ("holdmq", "gateway", "broker", "registry", "storage", "console", "spark_streaming")


def sources() -> str:
    """All that the product may say: its sources, with strings that go on in the next line joined."""
    texts = (path.read_text(encoding="utf-8") for name in SERVICES for path in (ROOT / name).rglob("*.py"))
    return re.sub(r'"\s*(\+ )?\n\s*f?"', "", "\n".join(texts))


def chart_values() -> set[str]:
    """The paths of the chart's values, which have sections of the same names."""

    def below(prefix: str, values: Any) -> Iterator[str]:
        for name, value in values.items() if isinstance(values, dict) else ():
            yield prefix + name
            yield from below(f"{prefix}{name}.", value)

    return set(below("", yaml.safe_load((ROOT / "helm/holdmq/values.yaml").read_text(encoding="utf-8"))))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_metrics_and_keys_and_commands_are_real(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    metrics = {metric.name for metric in declared_metrics()}
    areas = "|".join(sorted({metric.split("_")[1] for metric in metrics}))
    for name in re.findall(rf"\bholdmq_(?:{areas})_[a-z0-9_]*", text):
        assert name in metrics or (name.endswith("_") and any(m.startswith(name) for m in metrics)), name
    keys = {row.key for row in reference()}
    sections = {key.partition(".")[0] for key in keys}
    keys |= chart_values()
    for key in re.findall(r"`([a-z]+(?:\.[a-zA-Z_]+)+)(?![\w.(*])(?!\.md)", text):
        is_key = key.partition(".")[0] in sections and not key.endswith(".py")
        is_key = is_key and not (ROOT / key.replace(".", "/")).is_dir()
        begins = key.endswith("_") and any(one.startswith(key) for one in keys)
        assert not is_key or begins or key in keys, key
    for section, rest in re.findall(r"`holdmq ([a-z]+)((?: [a-z]+)?)", text):
        group: Any = typer.main.get_command(loadtest if section == "loadtest" else command_line(section))
        command = group if section == "loadtest" else group.commands[section]
        if rest and hasattr(command, "commands"):
            assert rest.strip() in command.commands, (section, rest)


def test_what_is_quoted_is_what_the_product_says() -> None:
    said = sources()
    quotes = re.findall(
        r"^> (.+)$", (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert len(quotes) > 10
    for quote in quotes:
        for part in quote.split("…"):
            assert part.strip() in said, part


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        assert target.startswith("https://") or (path.parent / target).exists(), target


@pytest.mark.parametrize(
    "name", ["concepts.md", "console.md", "operating.md", "troubleshooting.md", "valkey.md"]
)
def test_lines_are_short(name: str) -> None:
    assert max(map(len, (ROOT / "docs" / name).read_text(encoding="utf-8").splitlines())) <= 100
