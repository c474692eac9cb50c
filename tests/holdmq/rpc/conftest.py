"""Fixtures of the RPC's tests."""

import pytest
from rpc_peer import client, make_peer, peer, raw, until

from holdmq.rpc import client as client_module

__all__ = ["client", "make_peer", "peer", "raw", "until"]


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that others hold up is no peer that does not answer."""
    monkeypatch.setattr(client_module, "CONNECT_TIMEOUT_S", 60.0)
    monkeypatch.setattr(client_module.Client.call, "__defaults__", (60.0, (), 0))
