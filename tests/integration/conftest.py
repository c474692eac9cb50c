"""Fixtures of the tests on real processes."""

from processes import holdmq_stack

__all__ = ["holdmq_stack"]
