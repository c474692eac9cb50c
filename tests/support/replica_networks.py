"""Network namespaces of a test's own, on a bridge: hosts that can be cut from each other, one way too.

Needs root, as bridges and namespaces do; they are gone with the test, and no packet leaves the machine.
What delays or drops some of the packets is not here: kernels without `sch_netem` cannot.
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


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr.strip()}; these tests need root"


class Network:
    """Hosts by name, each a namespace with an address; this process is at `here`."""

    def __init__(self) -> None:
        self.number = next(_numbers) % 250 + 1
        self.bridge = f"hmqb{self.number}"
        self.here = self._address(254)
        self.addresses: dict[str, str] = {}
        self._cut: set[tuple[str, str]] = set()

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

    def heal(self) -> None:
        """Every packet arrives again."""
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
