"""Fixtures of the broker's tests."""

from broker_stack import broker, start
from group_peer import member
from patient_calls import calls_have_time
from share_peer import gateway
from shared_peer import join

__all__ = ["broker", "calls_have_time", "gateway", "join", "member", "start"]
