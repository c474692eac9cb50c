"""What every test stands on: no configuration leaks in."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def _no_configuration_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in [name for name in os.environ if name.startswith("HOLDMQ_")]:
        monkeypatch.delenv(variable)
