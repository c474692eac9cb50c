from __future__ import annotations

import pytest
from command_line import Cli, run_here, run_process
from valkey_servers import new_valkey

__all__ = ["new_valkey"]


@pytest.fixture
def holdmq() -> Cli:
    """Run the command line in this process, to its end."""
    return run_here


@pytest.fixture
def holdmq_process() -> Cli:
    """Run the command line in a process of its own, to its end."""
    return run_process
