"""Faults of a shard of real processes, by name: each is done, and healed."""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from shard_network import ETCDS, REPLICAS, ShardNetwork
from stopped_thread import let_go, stop_main_thread

from holdmq.errors import HoldMQError
from holdmq.files.atomic_file import AtomicFile
from storage.log.flusher import Checkpoint

Fault = Callable[[str, str], object]

FAILOVERS: Final = frozenset(
    {
        "kill the leader", "kill a copy", "kill the leader of etcd", "kill a member of etcd",
        "pause the leader", "pause the leader's loop", "pause a copy",
        "cut the leader off", "cut the leader from its copies", "cut the leader from etcd", "cut a copy off",
        "cut a copy from etcd", "one way from the leader", "one way to the leader",
        "one way from the leader to etcd", "one way from etcd to the leader", "bridge",
    }
)  # fmt: skip
"""Kills, pauses and cuts: within ttl_s + 2 s records are acknowledged again."""
NO_FAILOVER: Final = frozenset(
    {
        "etcd gone", "etcd wiped", "etcd restored",
        "full disk of the leader", "full disk of a copy, and another leader",
    }
)  # fmt: skip
"""Faults under which nothing may be acknowledged before they are healed."""
LOST_PERCENT: Final = 5
SLOW_BITS_PER_S: Final = 2_000_000
DAMAGED_BYTES: Final = 64 << 10
"""How far before a log's end it is damaged: records that this copy had said to have."""


class ShardFaults:
    """What can be done to a shard. `heal` takes all of it back."""

    def __init__(self, shard: ShardNetwork, chance: random.Random) -> None:
        self.shard = shard
        self._chance = chance
        self._stopped: list[str] = []
        self._kept: dict[str, Path] = {}
        self._has_other_version: set[str] = set()
        net, others = shard.net, _others
        self.kinds: dict[str, Fault] = {
            "kill the leader": lambda leader, _: shard.end(leader),
            "kill a copy": lambda _, copy: shard.end(copy),
            "stop the leader": lambda leader, _: shard.end(leader, signal.SIGTERM),
            "stop a copy": lambda _, copy: shard.end(copy, signal.SIGTERM),
            "pause the leader": lambda leader, _: self._pause(leader),
            "pause the leader's loop": lambda leader, _: self._stop_loop(leader),
            "pause a copy": lambda _, copy: self._pause(copy),
            "swap": self._swap,
            "cut the leader off": lambda leader, _: net.separate(leader, others(leader, *REPLICAS, *ETCDS)),
            "cut the leader from its copies": lambda leader, _: net.separate(
                leader, others(leader, *REPLICAS)
            ),
            "cut the leader from etcd": lambda leader, _: net.separate(leader, list(ETCDS)),
            "cut a copy off": lambda _, copy: net.separate(copy, others(copy, *REPLICAS, *ETCDS)),
            "cut a copy from etcd": lambda _, copy: net.separate(copy, list(ETCDS)),
            "one way from the leader": net.cut,
            "one way to the leader": lambda leader, copy: net.cut(copy, leader),
            "one way from the leader to etcd": lambda leader, _: [net.cut(leader, e) for e in ETCDS],
            "one way from etcd to the leader": lambda leader, _: [net.cut(e, leader) for e in ETCDS],
            "bridge": lambda leader, copy: net.separate(leader, [copy]),
            "lossy links": lambda _leader, _copy: [net.impair(n, LOST_PERCENT) for n in (*REPLICAS, *ETCDS)],
            "slow link of the leader": lambda leader, _: net.impair(leader, 0, SLOW_BITS_PER_S),
            "slow link of a copy": lambda _, copy: net.impair(copy, 0, SLOW_BITS_PER_S),
            "full disk of the leader": lambda leader, _: shard.disks[leader].fill(),
            "full disk of a copy": lambda _, copy: shard.disks[copy].fill(),
            "full disk of a copy, and another leader": self._fill_and_kill,
            "full disk of the leader, and another one": lambda leader, _: self._fill_and_pause(leader),
            "emptied disk": lambda _, copy: self._empty(copy),
            "bit flip": lambda _, copy: self._damage(copy, _flip),
            "truncation": lambda _, copy: self._damage(copy, _truncate),
            "restored old copy": lambda _, copy: self._restore(copy),
            "kill a member of etcd": lambda _leader, _copy: shard.end(chance.choice(ETCDS)),
            "kill the leader of etcd": lambda _leader, _copy: shard.end(shard.etcd_leader()),
            "etcd gone": lambda _leader, _copy: [shard.end(name) for name in ETCDS[:2]],
            "etcd wiped": lambda _leader, _copy: self._lose_etcd(shard.empty),
            "etcd restored": lambda _leader, _copy: self._restore_etcd(),
            "switch": lambda leader, _: shard.switch(leader),
            "switch storm": lambda _leader, _copy: self._storm(),
            "a member removed and added": lambda _, copy: self._resize(copy),
        }
        if shard.options.other_version is not None:
            self.kinds["another version of a copy"] = lambda _, copy: self._other_version(copy)
            self.kinds["another version leads"] = self._other_version_leads

    # Processes

    def _pause(self, name: str) -> None:
        self.shard.processes[name].send_signal(signal.SIGSTOP)

    def _stop_loop(self, name: str) -> None:
        stop_main_thread(self.shard.processes[name].pid)
        self._stopped.append(name)

    def _swap(self, leader: str, copy: str) -> None:
        """Pause the leader past its lease; it goes on, and a copy is killed."""
        self._pause(leader)
        time.sleep(self.shard.options.times.ttl_s + 1.5)
        self.shard.processes[leader].send_signal(signal.SIGCONT)
        if self.shard.leader() != copy:
            self.shard.end(copy)

    def _storm(self) -> None:
        for _ in range(4):
            leader = self.shard.leader()
            if leader:
                # It may be handing over already, or another one leads by now.
                with contextlib.suppress(HoldMQError):
                    self.shard.switch(leader)
            time.sleep(0.7)

    def _other_version(self, name: str) -> None:
        self.shard.end(name, signal.SIGTERM)
        self.shard.start_replica(name, self.shard.options.other_version)
        self._has_other_version.add(name)
        self.shard.wait_in_sync()

    def _other_version_leads(self, leader: str, copy: str) -> None:
        self._other_version(copy)
        self.shard.switch(leader, copy)

    # Members

    def _restart_all(self, leader: str) -> None:
        """As the guide to copies says: those that copy one after the other, then the leader."""
        for name in [n for n in self.shard.listed if n != leader] + [leader]:
            if name in self.shard.processes:
                self.shard.end(name, signal.SIGTERM)
                self.shard.start_replica(name)
                self.shard.wait_in_sync()

    def _resize(self, copy: str) -> None:
        """Take a replica away, and add it again with an empty disk."""
        shard = self.shard
        shard.end(copy, signal.SIGTERM)
        shard.wait_out_of_sync(copy)
        shard.listed = tuple(name for name in REPLICAS if name != copy)
        self._restart_all(shard.leader())
        shard.empty(copy)
        shard.listed = (*shard.listed, copy)
        leader = shard.leader()
        for name in (*_others(leader, *shard.listed[:-1]), leader):
            shard.end(name, signal.SIGTERM)
            shard.start_replica(name)
            shard.wait_level(shard.listed[:-1])
        shard.start_replica(copy)

    # Disks

    def _fill_and_kill(self, leader: str, copy: str) -> None:
        """A copy cannot write down that an epoch begins, nor that it leads in it."""
        self.shard.disks[copy].fill()
        self.shard.end(leader)

    def _fill_and_pause(self, leader: str) -> None:
        """A leader that is one no more opens its log again as a copy, and cannot write."""
        self.shard.disks[leader].fill()
        self._pause(leader)
        time.sleep(self.shard.options.times.ttl_s + 1.5)
        self.shard.processes[leader].send_signal(signal.SIGCONT)

    def _empty(self, name: str) -> None:
        self.shard.end(name)
        self.shard.empty(name)
        self.shard.start_replica(name)

    def _damage(self, name: str, damage: Callable[[Path, int], None]) -> None:
        """Damage what a copy has said to have, while it does not run."""
        status = self.shard.status(name)
        self.shard.end(name)
        if status is not None:
            position = max(status.first, status.confirmed - DAMAGED_BYTES)
            damage(self.shard.data(name) / "commitlog", position)
        self.shard.start_replica(name)

    def _restore(self, name: str) -> None:
        """Put an older state of a directory in its place, as from a backup."""
        shard, kept = self.shard, self.shard.directory / "kept"
        shutil.rmtree(kept, ignore_errors=True)
        shard.end(name)
        shutil.copytree(shard.data(name), kept)
        shard.start_replica(name)
        shard.wait_in_sync()
        time.sleep(1.0)
        shard.end(name)
        shard.empty(name)
        shutil.copytree(kept, shard.data(name))
        shard.start_replica(name)

    # etcd

    def _lose_etcd(self, lose: Callable[[str], object]) -> None:
        """All of etcd goes for longer than a lease lasts, and comes back with something else."""
        for name in ETCDS:
            self.shard.end(name)
        time.sleep(self.shard.options.times.ttl_s * 1.2)
        for name in ETCDS:
            lose(name)
            self.shard.start_etcd(name)

    def _restore_etcd(self) -> None:
        """A copy of all members' disks of before the last switch is put back while the leader lives."""
        shard, kept = self.shard, self.shard.directory / "kept-etcd"
        shutil.rmtree(kept, ignore_errors=True)
        for name in ETCDS:
            shard.end(name)
        for name in ETCDS:
            shutil.copytree(shard.data(name), kept / name)
            shard.start_etcd(name)
        shard.wait_in_sync()
        shard.switch(shard.leader())
        shard.wait_in_sync()

        def put_back(name: str) -> None:
            shard.empty(name)
            shutil.copytree(kept / name, shard.data(name))

        self._lose_etcd(put_back)

    # Healing

    def heal(self) -> None:
        """Everything works again."""
        shard = self.shard
        shard.net.heal()
        for disk in shard.disks.values():
            disk.give_back()
        for name in self._stopped:
            let_go(shard.processes[name].pid)
        self._stopped.clear()
        for name in self._has_other_version:
            shard.end(name, signal.SIGTERM)
        self._has_other_version.clear()
        for name in REPLICAS:
            process = shard.processes.get(name)
            if process is not None:
                process.send_signal(signal.SIGCONT)
        ended = shard.ended_by_itself()
        assert not ended, "\n".join(f"{name} ended by itself: {shard.last_words(name)}" for name in ended)
        for name in (*REPLICAS, *ETCDS):
            if name not in shard.processes:
                (shard.start_replica if name in REPLICAS else shard.start_etcd)(name)
        shard.wait_in_sync()


def _others(one: str, *names: str) -> list[str]:
    return [name for name in names if name != one]


def _segment_of(log: Path, position: int) -> Path:
    starts = sorted(int(path.name) for path in log.iterdir() if path.name.isdigit())
    start = max(start for start in starts if start <= position)
    return next(path for path in log.iterdir() if path.name.isdigit() and int(path.name) == start)


def _flip(log: Path, _position: int) -> None:
    """Damage the first record that a start checks: what lies below its checkpoint is checked by readers."""
    checkpoint = Checkpoint(AtomicFile(log.parent / "checkpoint.json"))
    assert checkpoint.load(False)
    position = checkpoint.position
    segment = _segment_of(log, position)
    with segment.open("r+b") as file:
        file.seek(position - int(segment.name))
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 0x10]))


def _truncate(log: Path, position: int) -> None:
    segment = _segment_of(log, position)
    for path in log.iterdir():
        if path.name.isdigit() and int(path.name) > int(segment.name):
            path.unlink()
    with segment.open("r+b") as file:
        file.truncate(position - int(segment.name))
