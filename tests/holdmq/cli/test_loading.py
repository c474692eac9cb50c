from __future__ import annotations

import gc
import importlib

import pytest

from holdmq.cli.loading import uncollected


def test_the_garbage_collector_looks_again_afterwards_whatever_happened() -> None:
    assert gc.isenabled()
    with uncollected():
        assert not gc.isenabled()
    with pytest.raises(ModuleNotFoundError), uncollected():
        importlib.import_module("holdmq.is_not_there")
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
