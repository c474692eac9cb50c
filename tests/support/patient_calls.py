"""Calls of tests wait as long as a machine that serves others may take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from holdmq.rpc.client import Client

CALL_S: Final = 60.0
"""What a call waits that says nothing of it: a client's own seconds are for a machine of its own."""


@pytest.fixture(scope="module", autouse=True)
def calls_have_time() -> Iterator[None]:
    """Give all calls that say nothing of it CALL_S."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Client.call, "__defaults__", (CALL_S, (), 0))
        yield
