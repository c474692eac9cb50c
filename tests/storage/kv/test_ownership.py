"""What an owner makes of its lease, its term, and of a server that is not what it was."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from threading import Event
from typing import Any

import pytest
from redis import Redis
from shard_owner import Posted
from valkey_servers import ValkeyServer

from holdmq.config.model import StorageSection
from holdmq.errors import ShardLostError, StorageError, StoreFormatError
from holdmq.record.batch import encode_batch
from storage.api.batches import Batch, BatchRun
from storage.api.queues import ReadStatus
from storage.kv.store import KvStore

NewValkey = Callable[..., ValkeyServer]
SHARD = "b1"
LEASE_MS = 1000
WAIT_S = 30.0


class DrivenShard:
    """A store of one shard and its "event loop": callbacks run when the test waits."""

    def __init__(self, server: ValkeyServer, **kv: Any) -> None:
        settings = {"url": server.url, "lease_ms": LEASE_MS, "timeout_ms": 500, **kv}
        section = StorageSection.model_validate({"engine": "kv", "kv": settings})
        self._posted = Posted()
        self.losses: list[ShardLostError] = []
        self.store = KvStore(section, SHARD, lambda _: 1, self._posted.post, lost=self.losses.append)

    def pump(self, holds: Callable[[], bool]) -> None:
        """Run the store's callbacks until something holds."""
        until = time.monotonic() + WAIT_S
        while not holds():
            assert time.monotonic() < until
            self._posted.run_for(0.005)

    def refusal_of(self, count: int = 3, queue_id: int = 0) -> StorageError | None:
        """Append so many records and wait for what becomes of them; None = they are confirmed."""
        raw, sizes = encode_batch(b"devices", queue_id, [b"21"] * count, b"", 5)
        batch = Batch(memoryview(bytearray(raw)), sizes, [BatchRun("devices", queue_id, count)])
        answers: list[StorageError | None] = []
        self.store.append(batch, lambda _batch, error: answers.append(error))
        self.pump(lambda: bool(answers))
        return answers[0]


def client_of_bytes(server: ValkeyServer) -> Redis:
    """A client for what is no text."""
    return Redis("127.0.0.1", server.port)


@pytest.fixture
def shard_of() -> Iterator[Callable[..., DrivenShard]]:
    """A function that opens the one shard on a server; all are closed with the test."""
    with ExitStack() as closing:

        def make(server: ValkeyServer, **kv: Any) -> DrivenShard:
            shard = DrivenShard(server, **kv)
            closing.callback(shard.store.close)
            shard.store.open()
            return shard

        yield make


def test_what_is_confirmed_while_the_lease_is_renewed_is_no_loss(
    new_valkey: NewValkey, shard_of: Callable[..., DrivenShard], monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = shard_of(new_valkey())
    run, is_answered, goes_on, is_judged = shard.store.server.run, Event(), Event(), Event()

    def renewing(function: str, *rest: Any) -> Any:
        answer = run(function, *rest)
        if function == "renew":
            if is_answered.is_set():
                is_judged.set()
            is_answered.set()
            assert goes_on.wait(WAIT_S)
        return answer

    monkeypatch.setattr(shard.store.server, "run", renewing)
    shard.pump(is_answered.is_set)
    assert shard.refusal_of() is None
    goes_on.set()
    shard.pump(is_judged.is_set)
    assert not shard.losses
    assert shard.refusal_of() is None


def test_no_term_is_given_twice_by_a_server_that_forgot_who_had_it(
    new_valkey: NewValkey, shard_of: Callable[..., DrivenShard]
) -> None:
    server = new_valkey()
    shard = shard_of(server)
    term = int(shard.store.writer.term)
    server.restart(signal.SIGKILL)
    assert int(shard_of(server).store.writer.term) > term
    shard.pump(lambda: bool(shard.losses))
    with pytest.raises(ShardLostError, match="another process owns it"):
        shard.store.count_loss()


def test_a_server_that_forgot_all_goes_on_as_the_same_store_in_an_epoch_that_says_what_is_lost(
    new_valkey: NewValkey, shard_of: Callable[..., DrivenShard]
) -> None:
    server = new_valkey()
    shard = shard_of(server)
    assert shard.refusal_of(3) is None
    assert shard.refusal_of(2, queue_id=1) is None
    end = shard.store.confirmed_position
    server.restart(signal.SIGKILL)
    shard.pump(lambda: bool(shard.losses))
    assert shard.store.count_loss() == 5
    shard.store.close()
    reopened = shard_of(server)
    again = reopened.store
    reopened.pump(lambda: again.loss().records > 0)
    assert (again.loss().records, again.numbers()["kv_lost_records_lately"]) == (5, 5)
    assert again.loss().age_s < WAIT_S
    assert again.store_id == shard.store.store_id
    assert (again.epoch, again.epoch_limit(1), again.lost_records) == (2, 0, 5)
    assert again.read_queue_cold("devices", 0, 1, 3, 1 << 20, 10).status is ReadStatus.AHEAD
    assert end > 0


def test_what_a_failover_lost_before_another_process_took_over_is_added_to_the_shard_s_losses(
    new_valkey: NewValkey, shard_of: Callable[..., DrivenShard]
) -> None:
    server = new_valkey()
    state = f"{{holdmq:{SHARD}}}:s"
    shard = shard_of(server)
    assert shard.refusal_of(3) is None
    # Another server, with what a replica had: the epoch of whoever opens the shard next begins here.
    server.command("HSET", state, "run_id", "of another server")
    with server.client() as client:
        keys = [key for key in client.scan_iter() if SHARD in key]
    with client_of_bytes(server) as client:
        had = {key: client.dump(key) for key in keys}
        assert shard.refusal_of(2) is None
        for key, dumped in had.items():
            client.restore(key, 0, dumped, replace=True)
    shard.pump(lambda: bool(shard.losses))
    other = shard_of(server).store
    assert shard.store.count_loss() == 2
    assert server.command("HGET", state, "lost") == "2"
    assert shard.store.epoch_limit(1) == other.epoch_limit(1) == other.confirmed_position


def test_a_log_that_ends_elsewhere_than_expected_ends_the_ownership_and_is_never_taken_for_an_answer(
    new_valkey: NewValkey, shard_of: Callable[..., DrivenShard]
) -> None:
    server = new_valkey()
    shard = shard_of(server)
    assert shard.refusal_of() is None
    # As far as the next batch would reach: what lies there is not that batch.
    server.command("HSET", f"{{holdmq:{SHARD}}}:s", "end", 2 * shard.store.confirmed_position)
    assert isinstance(shard.refusal_of(), ShardLostError)
    assert len(shard.losses) == 1


def test_a_full_server_is_opened_and_read_and_refuses_with_what_to_do(
    new_valkey: NewValkey, shard_of: Callable[..., DrivenShard]
) -> None:
    server = new_valkey()
    first = shard_of(server)
    assert first.refusal_of() is None
    first.store.close()
    server.configure("maxmemory", "1mb")
    shard = shard_of(server)
    assert shard.store.read_queue_cold("devices", 0, 0, 0, 1 << 20, 10).count == 3
    assert "raise maxmemory" in str(shard.refusal_of())
    server.configure("maxmemory", "0")
    assert shard.refusal_of() is None
    assert shard.store.state().ok


@pytest.mark.parametrize("is_owned", [True, False])
def test_a_shard_of_a_newer_format_is_refused_and_nothing_of_it_is_changed(
    new_valkey: NewValkey, is_owned: bool
) -> None:
    server = new_valkey()
    first = DrivenShard(server)
    first.store.open()
    with server.client() as client:
        state = f"{{holdmq:{SHARD}}}:s"
        if not is_owned:
            first.store.close()
        client.hset(state, "format", "2")
        before = client.hgetall(state)
        second = DrivenShard(server)
        with pytest.raises(StoreFormatError, match=r"the shard has format 2, this release knows 1.*upgrade"):
            second.store.open(0.0)
        after = client.hgetall(state)
        assert {**before, "lease_ms": ""} == {**after, "lease_ms": ""}, "the owner, if any, renews its lease"
        second.store.close()
    if is_owned:
        assert first.refusal_of() is None
        first.store.close()
