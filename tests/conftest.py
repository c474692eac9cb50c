"""What every test stands on: sources and compiled modules agree, and no configuration leaks in."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_ROOT = Path(__file__).parent.parent
_PACKAGES = (
    "gateway",
    "broker",
    "storage",
    "registry",
    "spark_streaming",
    "loadtest",
    "console",
    "holdmq",
)


def pytest_configure() -> None:
    """Refuse to run against a compiled module that is older than its source."""
    for package in _PACKAGES:
        for compiled in (_ROOT / package).rglob("*.so"):
            source = compiled.with_name(compiled.name.partition(".")[0] + ".py")
            if source.exists() and source.stat().st_mtime > compiled.stat().st_mtime:
                raise pytest.UsageError(
                    f"{compiled.relative_to(_ROOT)} is older than its source: make compile, or make clean"
                )


@pytest.fixture(autouse=True)
def _no_configuration_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in [name for name in os.environ if name.startswith("HOLDMQ_")]:
        monkeypatch.delenv(variable)
