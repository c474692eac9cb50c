"""Faults on three replicas and three members of etcd in network namespaces, under load: nothing is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from replica_rounds import run_rounds

FAULTS: Final = (
    "kill the leader",
    "pause the leader",
    "pause the leader's loop",
    "cut the leader off",
    "cut the leader from etcd",
    "lossy links",
    "bit flip",
    "full disk of a copy, and another leader",
    "full disk of the leader, and another one",
)
"""One of each family; `python -m replica_rounds` does all there are."""


@pytest.mark.timeout(900)
def test_nothing_acknowledged_is_lost_moved_or_doubled_by_faults(tmp_path: Path) -> None:
    said: list[str] = []
    found = run_rounds(tmp_path, len(FAULTS), 1, said.append, FAULTS)
    assert {one.fault for one in found} == set(FAULTS)
    assert len(said) == len(FAULTS)
