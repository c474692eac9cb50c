"""Network namespaces of a test's own, on a bridge: hosts that can be cut from each other, one way too.

Needs root, as bridges and namespaces do; they are gone with the test, and no packet leaves the machine.
Kernels without `sch_netem` lose packets all the same: a classic BPF program that draws lots puts some of them
into a class of HTB whose queue takes none. A link that is slow delays what waits for it.
"""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_numbers = itertools.count(os.getpid() % 200)
MASK: Final = 24
FAST_BITS_PER_S: Final = 10_000_000_000
RANDOM: Final = (1 << 32) - 0x1000 + 56
"""SKF_AD_OFF + SKF_AD_RANDOM: where classic BPF loads a random word from."""


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr.strip()}; these tests need root"


class Network:
    """Hosts by name, each a namespace with an address; this process is at `here`."""

    def __init__(self) -> None:
        self.number = next(_numbers) % 250 + 1
        self.bridge = f"hmqb{self.number}"
        self.here = self._address(254)
        self.addresses: dict[str, str] = {}
        self._cut: set[tuple[str, str]] = set()
        self._impaired: set[str] = set()

    def _address(self, host: int) -> str:
        return f"10.97.{self.number}.{host}"

    def make(self) -> None:
        """Make the bridge."""
        _ip("link", "add", self.bridge, "type", "bridge")
        _ip("address", "add", f"{self.here}/{MASK}", "dev", self.bridge)
        _ip("link", "set", self.bridge, "up")

    def add(self, name: str) -> str:
        """Add a host; its address."""
        host = len(self.addresses) + 1
        address = self.addresses[name] = self._address(host)
        space, outer, inner = self.space(name), f"hmq{self.number}o{host}", f"hmq{self.number}i{host}"
        _ip("netns", "add", space)
        _ip("link", "add", outer, "type", "veth", "peer", "name", inner)
        _ip("link", "set", outer, "master", self.bridge, "up")
        _ip("link", "set", inner, "netns", space)
        for words in (
            ("link", "set", "lo", "up"),
            ("address", "add", f"{address}/{MASK}", "dev", inner),
            ("link", "set", inner, "up"),
        ):
            _ip("-n", space, *words)
        return address

    def space(self, name: str) -> str:
        """The namespace of a host."""
        return f"hmq{self.number}-{name}"

    def prefix(self, name: str) -> tuple[str, ...]:
        """What runs a program there."""
        return ("ip", "netns", "exec", self.space(name))

    def cut(self, source: str, target: str) -> None:
        """No packet of `source` comes to `target` any more; the other way is as it was."""
        if (source, target) not in self._cut:
            self._cut.add((source, target))
            _ip("-n", self.space(source), "route", "add", "blackhole", f"{self.addresses[target]}/32")

    def separate(self, one: str, others: list[str]) -> None:
        """Cut a host from others, both ways."""
        for other in others:
            self.cut(one, other)
            self.cut(other, one)

    def impair(self, name: str, dropped_percent: float, bits_per_s: int = FAST_BITS_PER_S) -> None:
        """Lose so many of the packets that a host sends, and send the others at most so fast."""
        self._impaired.add(name)
        device = f"hmq{self.number}i{list(self.addresses).index(name) + 1}"
        lots = round(dropped_percent / 100 * (1 << 32))
        # A random word; below `lots`: class 1:2, else class 1:1.
        program = f"4,32 0 0 {RANDOM},53 1 0 {lots},6 0 0 {0x10002},6 0 0 {0x10001}"
        at = ("tc", "-n", self.space(name))
        for words in (
            f"qdisc replace dev {device} root handle 1: htb default 1 r2q 100000",
            f"class add dev {device} parent 1: classid 1:1 htb rate {bits_per_s}bit quantum 60000",
            f"class add dev {device} parent 1: classid 1:2 htb rate {bits_per_s}bit quantum 60000",
            f"qdisc add dev {device} parent 1:2 handle 2: bfifo limit 1",
        ):
            _run(*at, *words.split())
        _run(*at, *f"filter add dev {device} parent 1: bpf bytecode".split(), program, "classid", "1:2")

    def heal(self) -> None:
        """Every packet arrives again, and at once."""
        for name in self._impaired:
            device = f"hmq{self.number}i{list(self.addresses).index(name) + 1}"
            _run("tc", "-n", self.space(name), "qdisc", "del", "dev", device, "root")
        self._impaired.clear()
        for source, target in self._cut:
            _ip("-n", self.space(source), "route", "del", "blackhole", f"{self.addresses[target]}/32")
        self._cut.clear()

    def remove(self) -> None:
        """Take everything away again."""
        for name in self.addresses:
            subprocess.run(["ip", "netns", "del", self.space(name)], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", self.bridge], capture_output=True, check=False)


@contextmanager
def network() -> Iterator[Network]:
    """A network for a test."""
    made = Network()
    made.make()
    try:
        yield made
    finally:
        made.remove()
