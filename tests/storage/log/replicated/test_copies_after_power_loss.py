"""Power loss, or a kill, at every write and fsync of a copy: it has what it acknowledged, and follows on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import structlog
from log_copies import CopyOfLog, SimMachine, founded
from sim_disk import PowerLoss, SimDisk

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Hundreds of starts have nothing new to say."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    yield
    structlog.reset_defaults()


def log_bytes(replica: CopyOfLog) -> bytes:
    """The whole log from its first position on, blanks too."""
    return b"".join(raw for _, raw in sorted(replica.segments().items()))


class Watched:
    """A copy that follows a leader; after a step of its disk the machine is looked at as if it had gone."""

    def __init__(self, flush: str, seed: int, is_killed: bool) -> None:
        self.chance = Random(seed)
        self.flush = flush
        self.is_killed = is_killed
        self.leader = founded(flush=flush)
        self.copy = CopyOfLog(flush=flush)
        self.acknowledged = 0
        self.epochs = 1
        self.points = 0
        self.losses = 0
        self.is_trusted = False

    def look(self, point: int, _operation: str, _path: Path) -> None:
        if self.chance.random() < 0.5:
            return
        self.points += 1
        seed = point * 31 + 7
        if self.is_killed:
            left, boot = self.copy.disk.copy(), self.copy.machine.boot
        else:
            left, boot = self.copy.disk.after_power_loss(seed), "another"
        found = CopyOfLog(left, self.flush, machine=SimMachine(left, boot))
        log, leader = found.log, self.leader
        assert log.store_id == leader.log.store_id, "it had begun anew before"
        whole = log_bytes(leader)
        assert log_bytes(found) == whole[: log.written_position]
        assert log.confirmed_position <= log.written_position
        if self.flush == "sync" or self.is_killed:
            assert log.written_position >= self.acknowledged
        self.losses += log.written_position < self.acknowledged
        if log.written_position < self.acknowledged:
            assert not log.is_whole, "it lacks what it acknowledged, and knows"
        elif self.is_trusted and (self.is_killed or self.flush == "sync"):
            assert log.is_whole or log.written_position < self.copy.log.appended_position
        assert len(log.epochs) >= self.epochs
        found.follow(leader)
        found.confirm(leader.store.confirmed_position)
        assert found.segments() == leader.segments()
        for queue_id in range(3):
            # It confirms what it fetched at once as a whole.
            assert found.store.bounds("devices", queue_id)[1] <= leader.store.bounds("devices", queue_id)[1]
            assert leader.queue_bytes(queue_id).startswith(found.queue_bytes(queue_id))
        found.flush_step()
        found.restart()
        assert found.segments() == leader.segments()

    def play(self, rounds: int) -> None:
        copy, leader, chance = self.copy, self.leader, self.chance
        copy.start_over(leader)
        copy.trust()
        self.is_trusted = True
        copy.disk.at_point = self.look
        for number in range(rounds):
            for _ in range(chance.randrange(1, 5)):
                leader.append(
                    chance.randrange(3), chance.randrange(1, 4), b"x" * chance.choice((5, 200, 500))
                )
            leader.settle()
            if number % 9 == 8:
                leader.begin_epoch(leader.log.epochs[-1].epoch + 1)
            self.follow()
            if chance.random() < 0.6:
                leader.confirm(min(copy.log.durable_position, leader.log.durable_position))
                copy.confirm(leader.store.confirmed_position)
            if chance.random() < 0.4:
                copy.flush_step()
            if chance.random() < 0.1:
                copy.restart()

    def follow(self) -> None:
        copy, leader = self.copy, self.leader
        while True:
            while copy.store.writer.step():
                copy.deliver()
                self.acknowledged = copy.log.durable_position
            copy.settle()
            self.acknowledged = copy.log.durable_position
            following = [e for e in leader.log.epochs if e.epoch > copy.log.epochs[-1].epoch]
            if following and following[0].start <= copy.log.appended_position:
                copy.begin_epoch(following[0].epoch)
                self.epochs = len(copy.log.epochs)
                continue
            if not copy.fetch(leader, self.chance.choice((1, 600, 1 << 20))):
                return


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_copy_has_what_it_acknowledged_and_follows_on(flush: str, is_killed: bool) -> None:
    points = losses = 0
    for seed in range(2):
        watched = Watched(flush, seed, is_killed)
        watched.play(25)
        points += watched.points
        losses += watched.losses
    assert points > 100
    assert (losses > 0) == (flush == "async" and not is_killed)


def test_a_start_that_does_not_get_through_can_be_made_again() -> None:
    chance = Random(5)
    leader = founded()
    copy = CopyOfLog()
    copy.start_over(leader)
    for _ in range(20):
        leader.append(chance.randrange(3), 2, b"x" * 200)
    leader.settle()
    copy.follow(leader)
    copy.confirm(copy.log.written_position // 2)
    cut_short = 0
    for step in range(60):
        disk = copy.disk.after_power_loss(step)

        def off(point: int, _operation: str, _path: Path, disk: SimDisk = disk, step: int = step) -> None:
            disk.is_off = point == step

        disk.at_point = off
        try:
            CopyOfLog(disk)
        except PowerLoss:
            cut_short += 1
        found = CopyOfLog(disk.after_power_loss(step))
        found.follow(leader)
        # A file that lost its end twice may end where the log did: the bytes are the same in two files then.
        assert log_bytes(found) == log_bytes(leader)
    assert cut_short > 10
