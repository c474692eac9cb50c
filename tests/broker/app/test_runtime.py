from __future__ import annotations

import gc
import resource
import sys
import weakref
from collections.abc import Iterator

import pytest

from broker.app.runtime import CLOSED_MAX, FULL_INTERVAL_S, QUIET_BATCHES, FullCollections, collect
from holdmq.service.interpreter import SWITCH_INTERVAL_S, prepare_interpreter

BUSY = 10 * QUIET_BATCHES


class Node:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def prepared() -> Iterator[None]:
    thresholds, interval_s = gc.get_threshold(), sys.getswitchinterval()
    prepare_interpreter()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)
    sys.setswitchinterval(interval_s)


@pytest.mark.usefixtures("prepared")
def test_many_objects_that_stay_cause_no_full_collection() -> None:
    before = gc.get_stats()[2]["collections"]
    young = gc.get_stats()[0]["collections"]
    kept = [[index] for index in range(200_000)]
    assert len(kept) == 200_000
    assert gc.get_stats()[0]["collections"] > young + 100
    assert gc.get_stats()[2]["collections"] == before


@pytest.mark.usefixtures("prepared")
def test_cycles_that_grew_old_are_found_in_the_end() -> None:
    node = Node()
    gc.collect(1)
    gc.collect(1)
    found = weakref.ref(node)
    del node
    gc.collect(1)
    assert found() is not None
    collect()
    assert found() is None


@pytest.mark.usefixtures("prepared")
def test_a_thread_that_computes_lets_the_loop_go_on_soon() -> None:
    assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL_S)


@pytest.mark.usefixtures("prepared")
def test_memory_of_one_batch_serves_the_next_without_page_faults() -> None:
    def copy_a_batch() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        copies = [bytearray(4 << 20) for _ in range(4)]
        copies.clear()
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    copy_a_batch()
    pages = (16 << 20) // resource.getpagesize()
    assert max(copy_a_batch() for _ in range(5)) < pages / 10


def test_a_busy_broker_looks_through_everything_only_after_the_interval() -> None:
    full = FullCollections(0.0)
    checks = [full.check(now, now * BUSY, 0) for now in range(1, int(FULL_INTERVAL_S))]
    assert not any(checks)
    assert full.check(FULL_INTERVAL_S, int(FULL_INTERVAL_S) * BUSY, 0)
    assert not full.check(FULL_INTERVAL_S + 1, int(FULL_INTERVAL_S + 1) * BUSY, 0)
    assert full.collections == 1


def test_a_quiet_moment_is_used_once() -> None:
    full = FullCollections(0.0)
    assert not full.check(1.0, BUSY, 0)
    assert full.check(2.0, BUSY + 1, 0)
    assert not full.check(3.0, BUSY + 1, 0)


def test_many_closed_connections_are_not_waited_with() -> None:
    full = FullCollections(0.0)
    assert not full.check(1.0, BUSY, CLOSED_MAX - 1)
    assert full.check(2.0, 2 * BUSY, CLOSED_MAX)
    assert not full.check(3.0, 3 * BUSY, CLOSED_MAX + 1)
