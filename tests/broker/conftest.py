"""Fixtures of the broker's tests."""

from broker_stack import broker, start

__all__ = ["broker", "start"]
