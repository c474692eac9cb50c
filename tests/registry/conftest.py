"""Fixtures of the registry's tests."""

from patient_calls import calls_have_time

__all__ = ["calls_have_time"]
