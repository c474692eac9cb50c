"""Fixtures of the broker's tests."""

from broker_stack import broker, start
from group_peer import member
from shared_peer import join

__all__ = ["broker", "join", "member", "start"]
