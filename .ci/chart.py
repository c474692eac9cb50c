#!/usr/bin/env python3
"""Writes what follows from the chart's values: helm/holdmq/values.schema.json and its README.md.

A value's meaning is the comment above it in values.yaml. Its schema is what its default says (a text, a
number, an object that has these keys and no others, a list of anything, an object of anything when the
default is {}), changed by a line ``# @schema {…}``. ``$defs/config`` are the sections and keys of
holdmq.toml, from the product; an object with a title is in ``$defs`` under that title, for others to use.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from holdmq.config.model import Config

ROOT: Final = Path(__file__).parent.parent
CHART: Final = ROOT / "helm" / "holdmq"
WIDTH: Final = 100
KINDS: Final = {bool: "boolean", int: "integer", str: "string", list: "array", dict: "object"}

INTRODUCTION: Final = """\
<!-- Written by `make chart` from values.yaml and Chart.yaml. -->

# {name}

{description}.
Chart {version} of HoldMQ {app}, for Kubernetes {kubernetes}.

```sh
helm install holdmq ./helm/holdmq --namespace holdmq --create-namespace \\
    --set mqtt.allowAnonymous=true
helm test holdmq --namespace holdmq
```

The guide is [docs/kubernetes.md](../../docs/kubernetes.md): access, scaling, draining, upgrades,
backups, sizes.

## Values

"""


@dataclass(slots=True)
class Value:
    """One key of values.yaml: its default, what its comment says, and the values in it."""

    path: tuple[str, ...]
    default: Any
    meaning: str
    schema: dict[str, Any]
    inner: list[Value] = field(default_factory=list)

    @property
    def is_section(self) -> bool:
        """Whether it is an object whose keys are described each by itself."""
        return bool(self.inner)


def read_values(text: str) -> list[Value]:
    """The values of a values.yaml with their comments. Raises ValueError, naming it, for one without."""
    lines = text.splitlines()
    root = yaml.compose(text)
    assert isinstance(root, yaml.MappingNode)
    return list(_values(root, yaml.safe_load(text), lines, ()))


def _values(
    node: yaml.MappingNode, defaults: dict[str, Any], lines: list[str], at: tuple[str, ...]
) -> Iterator[Value]:
    for key, value in node.value:
        path = (*at, key.value)
        meaning, schema = _comment(lines, key.start_mark.line)
        if not meaning:
            raise ValueError(f"{'.'.join(path)} has no comment that says what it means")
        found = Value(path, defaults[key.value], meaning, schema)
        # An object whose schema says which keys there may be is described as a whole.
        if isinstance(value, yaml.MappingNode) and value.value and "additionalProperties" not in schema:
            found.inner = list(_values(value, found.default, lines, path))
        yield found


def _comment(lines: list[str], key_line: int) -> tuple[str, dict[str, Any]]:
    words: list[str] = []
    schema: dict[str, Any] = {}
    for line in reversed(lines[:key_line]):
        stripped = line.strip()
        if not stripped.startswith("#"):
            break
        said = stripped.removeprefix("#").strip()
        if said.startswith("@schema "):
            schema = yaml.safe_load(said.removeprefix("@schema "))
        else:
            words.insert(0, said)
    return " ".join(words), schema


def schema_of(values: list[Value]) -> dict[str, Any]:
    """The JSON schema that takes these values and no others."""
    titled: dict[str, Any] = {}
    config = Config.model_json_schema()
    defs = config.pop("$defs")
    config = {key: config[key] for key in ("type", "properties", "additionalProperties")}
    return {
        "$schema": "https://json-schema.org/draft-07/schema#",
        **_object(values, titled),
        "$defs": _without_defaults({**defs, "config": config}) | titled,
    }


def _object(values: list[Value], titled: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {value.path[-1]: _schema(value, titled) for value in values},
    }


def _schema(value: Value, titled: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in value.schema:
        return {"description": value.meaning, **value.schema}
    if value.is_section:
        found = {"description": value.meaning, **_object(value.inner, titled)}
    else:
        found = {"description": value.meaning}
        if value.default is not None:
            found["type"] = KINDS[type(value.default)]
    title = value.schema.get("title")
    if title:
        titled[title] = found
        return {"$ref": f"#/$defs/{title}"}
    return found | value.schema


def _without_defaults(schema: Any) -> Any:
    """A schema without what only people read: defaults and titles; helm stores it with each release."""
    if isinstance(schema, dict):
        return {
            key: {name: _without_defaults(one) for name, one in found.items()}
            if key == "properties"
            else _without_defaults(found)
            for key, found in schema.items()
            if key not in ("default", "title", "description")
        }
    if isinstance(schema, list):
        return [_without_defaults(one) for one in schema]
    return schema


def readme_of(values: list[Value], chart: dict[str, Any]) -> str:
    """The chart's README."""
    text = INTRODUCTION.format(
        name=chart["name"],
        description=chart["description"],
        version=chart["version"],
        app=chart["appVersion"],
        kubernetes=re.sub(r">=(.*)-0", r"\1 and newer", chart["kubeVersion"]),
    )
    alone = [value for value in values if not value.is_section]
    parts = ["\n".join(map(_line, alone))]
    for value in values:
        if value.is_section:
            lines = "\n".join(map(_line, _leaves(value)))
            parts.append(f"### {value.path[0]}\n\n{_wrapped(value.meaning)}\n\n{lines}")
    return text + "\n\n".join(parts) + "\n"


def _leaves(value: Value) -> Iterator[Value]:
    if not value.is_section:
        yield value
    for one in value.inner:
        yield from _leaves(one)


def _line(value: Value) -> str:
    default = json.dumps(value.default, ensure_ascii=False)
    return _wrapped(f"- `{'.'.join(value.path)}` (`{default}`): {value.meaning}", "  ")


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(
        text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def written() -> dict[Path, str]:
    """File → what is to be in it."""
    values = read_values((CHART / "values.yaml").read_text())
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    return {
        CHART / "values.schema.json": json.dumps(schema_of(values), indent=1, ensure_ascii=False) + "\n",
        CHART / "README.md": readme_of(values, chart),
    }


if __name__ == "__main__":
    for path, text in written().items():
        path.write_text(text)
        sys.stdout.write(f"{path.relative_to(ROOT)}\n")
