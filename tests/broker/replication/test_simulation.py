"""Replicas under every fault, by seed: what was acknowledged stays, and a healed shard goes on.

A seed that fails replays exactly: `make simulation FIRST=seed SEEDS=1`.
"""

from __future__ import annotations

import pytest
from replica_faults import run_world
from replica_scenarios import (
    copy_ahead,
    cut_from_copies,
    diverged_copy,
    late_read,
    lease_taken_again,
    left_alone,
    unheard_growth,
)

SEEDS = 240
PART = 20


@pytest.mark.parametrize("first", range(0, SEEDS, PART))
def test_nothing_acknowledged_is_lost_under_any_fault(first: int) -> None:
    acks = serves = 0
    for seed in range(first, first + PART):
        for is_sync in (False, True):
            run = run_world(seed, is_sync)
            acks += run.history.acks
            serves += run.history.serves
    assert acks > 200 * PART
    assert serves > 3 * PART


def test_a_seed_replays_exactly() -> None:
    one, other = run_world(11, True), run_world(11, True)
    assert one.faults == other.faults
    assert one.history.values == other.history.values


@pytest.mark.parametrize(
    "scenario", [copy_ahead, diverged_copy, late_read, lease_taken_again, unheard_growth]
)
def test_short_moments_that_seeds_seldom_meet(scenario: object) -> None:
    assert callable(scenario)
    scenario()


@pytest.mark.parametrize("switch_s", [1.0, 5.0])
@pytest.mark.parametrize("is_idle", [True, False])
def test_a_leader_that_reaches_no_copy_lets_one_of_them_lead(is_idle: bool, switch_s: float) -> None:
    for seed in range(40):
        cut_from_copies(is_idle, switch_s, seed)


def test_a_leader_whose_copies_have_ended_goes_on_with_what_it_has() -> None:
    left_alone()
