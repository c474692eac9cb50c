"""A table that a start goes through: every page once, and from its first row on after an error."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import cast

import pytest
from broker_stack import until

from broker.kernel.table_pages import TablePages
from holdmq.errors import HoldMQError, StorageError
from storage.api.store import OrderedStore
from storage.api.tables import Reached

FAILURE = StorageError("the disk", operation="read")


class SlowTables:
    """Tables that show what is confirmed when `reached` is called."""

    def __init__(self) -> None:
        self.reached: list[Reached] = []
        self.asked: list[int] = []

    def wait_applied(self, position: int, reached: Reached) -> None:
        self.asked.append(position)
        self.reached.append(reached)


class PagedStore:
    """A store whose table has `pages`; one that is an exception is raised."""

    confirmed_position = 7

    def __init__(self, pool: Executor) -> None:
        self.reader_pool = pool
        self.tables = SlowTables()
        self.pages: list[str | Exception] = ["a", "b", "c"]
        self.read: list[str | None] = []
        self.took: list[str] = []
        self.ended: list[HoldMQError | None] = []
        self.walk = TablePages(cast(OrderedStore, self), self._page, self.took.append, self.ended.append)

    def _page(self, after: str | None) -> tuple[str, str | None]:
        self.read.append(after)
        at = 0 if after is None else int(after)
        page = self.pages[at]
        if isinstance(page, Exception):
            raise page
        return page, str(at + 1) if at + 1 < len(self.pages) else None

    def show(self, error: StorageError | None = None) -> None:
        self.tables.reached.pop()(error)


@pytest.fixture
def store() -> Iterator[PagedStore]:
    with ThreadPoolExecutor(1) as pool:
        yield PagedStore(pool)


async def test_every_page_is_taken_once_the_table_shows_what_is_confirmed(store: PagedStore) -> None:
    store.walk.begin()
    assert (store.tables.asked, store.read) == ([7], [])
    store.show()
    await until(lambda: bool(store.ended))
    assert (store.read, store.took, store.ended) == ([None, "1", "2"], ["a", "b", "c"], [None])


async def test_an_error_ends_it_and_it_begins_again(store: PagedStore) -> None:
    store.walk.begin()
    store.show(FAILURE)
    assert store.ended == [FAILURE]
    for failure, told in ((FAILURE, "the disk"), (ValueError("a fault of ours"), "a fault of ours")):
        store.pages[1] = failure
        store.took.clear()
        store.ended.clear()
        store.walk.begin()
        store.show()
        await until(lambda: bool(store.ended))
        assert store.took == ["a"]
        assert isinstance(store.ended[0], StorageError)
        assert told in str(store.ended[0])
    store.pages[1] = "b"
    store.took.clear()
    store.walk.begin()
    store.show()
    await until(lambda: len(store.ended) == 2)
    assert (store.took, store.ended[1]) == (["a", "b", "c"], None)


async def test_nothing_is_read_after_its_close(store: PagedStore) -> None:
    store.walk.begin()
    store.walk.close()
    store.show()
    await asyncio.sleep(0.05)
    assert (store.read, store.took, store.ended) == ([], [], [])


async def test_a_page_that_is_read_at_its_close_is_nobodys(store: PagedStore) -> None:
    store.walk.begin()
    store.show()
    store.walk.close()
    await until(lambda: store.read == [None])
    await asyncio.sleep(0.05)
    assert (store.read, store.took, store.ended) == ([None], [], [])
