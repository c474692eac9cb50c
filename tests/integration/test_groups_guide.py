"""Every example of docs/consumers.md runs, and prints what the page says."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog

GUIDE = Path(__file__).parents[2] / "docs" / "consumers.md"


def examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)


@pytest.fixture(scope="module", autouse=True)
def _logs_are_not_printed() -> Any:
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    yield
    structlog.reset_defaults()


@pytest.mark.parametrize("number", range(len(examples())))
def test_the_guide_s_examples_run(
    holdmq_stack: Callable[..., Any], number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    stack = holdmq_stack(services=("registry", "broker"))
    code = examples()[number].replace("127.0.0.1:9876", f"127.0.0.1:{stack.registry_port}")
    exec(compile(code, f"{GUIDE.name} example {number}", "exec"), {"__name__": "__main__"})
    shown = re.findall(r"^# prints: (.*)$", code, re.MULTILINE)
    assert capsys.readouterr().out.splitlines() == shown
