"""Mosquitto as a peer, on a free loopback port."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.peers import mosquitto


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[tuple[str, int]]:
    """Host and port of a Mosquitto of this test."""
    with mosquitto(tmp_path) as address:
        host, _, port = address.rpartition(":")
        yield host, int(port)
