"""Fixtures of the tests on real processes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from mqtt_client import MqttClient
from processes import holdmq_stack

__all__ = ["holdmq_stack"]

_names = itertools.count()


@pytest.fixture(autouse=True)
def _ended_clients() -> Iterator[None]:
    yield
    MqttClient.close_all()


@pytest.fixture
def topic() -> str:
    """A first level that no other test publishes to, and a beginning for client ids that no other has."""
    return f"t{next(_names)}"
