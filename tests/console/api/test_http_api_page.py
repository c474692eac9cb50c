"""docs/http-api.md says what the console serves."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from console.main import described_api

ROOT = Path(__file__).parents[3]


async def test_the_page_is_what_the_generator_writes() -> None:
    spec = importlib.util.spec_from_file_location("http_api", ROOT / ".ci/http_api.py")
    assert spec is not None
    assert spec.loader is not None
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    assert (ROOT / "docs/http-api.md").read_text() == generator.page_of(await described_api()), (
        "run python .ci/http_api.py"
    )
