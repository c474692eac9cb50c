"""Fixtures of the broker's tests."""

from broker_stack import broker, start
from group_peer import member
from share_peer import gateway
from shared_peer import join

__all__ = ["broker", "gateway", "join", "member", "start"]
