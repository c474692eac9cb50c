"""Every example of the guides runs, and prints what the page says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from guides import examples_of, run_console, run_python

StackMaker = Callable[..., Any]
PAGES = (
    "consumers.md",
    "delay.md",
    "groups.md",
    "idempotence.md",
    "messages.md",
    "producer.md",
    "quotas.md",
    "retry.md",
    "tables.md",
    "tenants.md",
)


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.timeout(900)
def test_the_examples_of_a_page_run_one_after_the_other(
    holdmq_stack: StackMaker, page: str, tmp_path: Path
) -> None:
    stack = holdmq_stack(services=("registry", "broker"))
    examples = examples_of(page, "python", "console")
    assert examples
    for example in examples:
        if example.language == "python":
            run_python(example, stack.registry, tmp_path)
        else:
            run_console(example, [f"--set=registry.port={stack.registry_port}"], tmp_path)
