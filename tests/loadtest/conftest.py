"""Mosquitto as a peer, on a free loopback port."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import free_port

from loadtest.peers import mosquitto


@pytest.fixture
def peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    """Host and port of a Mosquitto of this test."""
    # The system gives its own choice to somebody's connection, before Mosquitto listens.
    monkeypatch.setattr("loadtest.peers.free_port", free_port)
    with mosquitto(tmp_path) as address:
        host, _, port = address.rpartition(":")
        yield host, int(port)
