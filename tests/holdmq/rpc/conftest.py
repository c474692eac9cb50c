"""Fixtures of the RPC's tests."""

from rpc_peer import client, make_peer, peer, raw, until

__all__ = ["client", "make_peer", "peer", "raw", "until"]
