"""Writes docs/http-api.md from the console's table of endpoints: python .ci/http_api.py"""

from __future__ import annotations

import asyncio
import textwrap
from pathlib import Path
from typing import Any

from console.main import described_api

PAGE = Path(__file__).parents[1] / "docs/http-api.md"
HEAD = """# The console's HTTP API

`.ci/http_api.py` writes this page from the table that the console serves (`console/app.py`), whose
models also check what comes and write `/api/v1/openapi.json`. Who signs in how, what an error is,
and bounds: [console.md](console.md#who-may). A list is asked for in parts: `next` of an answer is
`after` of the next question, null = that was all. What stands in braces is percent-encoded."""


def page_of(document: dict[str, Any]) -> str:
    """Return the page that describes an OpenAPI document."""
    parts = [HEAD]
    area = ""
    for path, methods in document["paths"].items():
        found = path.removeprefix("/api/v1/").partition("/")[0]
        if found != area:
            area = found
            parts.append(f"\n## {area}")
        for method, operation in methods.items():
            parts.append(f"\n`{method.upper()} {path}` ({operation['x-role']})\n")
            parts.append(wrapped(operation["summary"]))
            parts.extend(wrapped(line, "- ") for line in _lines(operation, document["components"]["schemas"]))
    return "\n".join(parts).rstrip() + "\n"


def _lines(operation: dict[str, Any], schemas: dict[str, Any]) -> list[str]:
    lines = []
    query = [one["name"] for one in operation.get("parameters", ()) if one["in"] == "query"]
    if query:
        lines.append("asks by " + ", ".join(f"`{name}`" for name in query))
    if "requestBody" in operation:
        lines.append("takes " + _fields(operation["requestBody"]["content"], schemas))
    for status, answer in operation["responses"].items():
        if status.startswith("2"):
            lines.append(
                f"answers {status}"
                + (f" {_fields(answer['content'], schemas)}" if "content" in answer else "")
            )
    return lines


def _fields(content: dict[str, Any], schemas: dict[str, Any]) -> str:
    said = []
    for kind, one in content.items():
        name = one["schema"].get("$ref", "").rpartition("/")[2]
        if not name:
            said.append(f"`{kind}`")
            continue
        schema = schemas[name]
        required = set(schema.get("required", ()))
        fields = [f"`{field}`" + ("" if field in required else "?") for field in schema.get("properties", {})]
        said.append(f"{name}: {', '.join(fields)}" if fields else name)
    return "; or ".join(said)


def wrapped(text: str, lead: str = "") -> str:
    """Return a paragraph in lines of at most 100 characters."""
    return textwrap.fill(
        text, 100, initial_indent=lead, subsequent_indent=" " * len(lead), break_on_hyphens=False
    )


def main() -> None:
    """Write the page."""
    PAGE.write_text(page_of(asyncio.run(described_api())), encoding="utf-8")


if __name__ == "__main__":
    main()
