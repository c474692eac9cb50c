"""Faults on three replicas and three members of etcd in network namespaces, under load: nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from replica_rounds import run_rounds

ROUNDS = 9


@pytest.mark.timeout(900)
def test_nothing_acknowledged_is_lost_moved_or_doubled_by_faults(tmp_path: Path) -> None:
    said: list[str] = []
    found = run_rounds(tmp_path, ROUNDS, 1, said.append)
    assert len(found) == ROUNDS
    assert len(said) == ROUNDS
