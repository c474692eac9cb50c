"""Each mistake that others shipped, made on purpose, breaks a promise under the simulation."""

from __future__ import annotations

import pytest
from replica_traps import TRAPS, is_caught_by_scenario, seed_that_catches

SEEDS = 40


@pytest.mark.parametrize("name", TRAPS)
def test_the_simulation_catches(name: str) -> None:
    trap = TRAPS[name]
    if trap.scenario is not None:
        assert is_caught_by_scenario(trap)
    else:
        assert seed_that_catches(trap, SEEDS) is not None
