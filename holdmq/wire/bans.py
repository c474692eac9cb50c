"""Bans read and checked, and found by what is known of a client, sans-IO: one look-up for each CONNECT."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgpack

from holdmq.errors import Code, RemoteError, WireError
from holdmq.names.networks import network_of, shown_network
from holdmq.names.patterns import pattern_of
from holdmq.wire.ban_headers import ADDRESS, CLIENT_ID, KINDS, PATTERN, USER, BanRow
from holdmq.wire.header import rows
from holdmq.wire.untrusted import unpack

VALUE_MAX_BYTES: Final = 16 << 10
"""Of what is banned: as long as a client id may be."""
REASON_MAX: Final = 500
BY_MAX: Final = 200

BanKey = tuple[str, str]
"""Kind, and value as `checked` writes it."""


def checked(ban: BanRow) -> BanRow:
    """Return a ban with its value written in the one way. Raises RemoteError for what cannot be banned."""
    if ban.kind not in KINDS:
        raise RemoteError(Code.LIMIT_EXCEEDED, f"a ban is of a {', '.join(KINDS)}, not of {ban.kind[:40]!r}")
    if not ban.value or len(ban.value.encode()) > VALUE_MAX_BYTES:
        raise RemoteError(Code.LIMIT_EXCEEDED, f"what is banned has 1 to {VALUE_MAX_BYTES} bytes")
    if len(ban.reason) > REASON_MAX or len(ban.by) > BY_MAX:
        raise RemoteError(
            Code.LIMIT_EXCEEDED, f"a reason has at most {REASON_MAX} characters, who gives it {BY_MAX}"
        )
    value = ban.value
    try:
        if ban.kind == ADDRESS:
            value = shown_network(value)
        if ban.kind == PATTERN:
            pattern_of(value)
    except ValueError as error:
        raise RemoteError(Code.LIMIT_EXCEEDED, str(error)) from error
    return ban._replace(value=value)


def key_of(ban: BanRow) -> BanKey:
    """Return what a ban is known by."""
    return ban.kind, ban.value


def row_key(key: BanKey) -> str:
    """Return the key of a ban's row in the table."""
    return f"{key[0]}:{key[1]}"


def encode_ban(ban: BanRow) -> bytes:
    """Return a ban as its row has it."""
    packed: bytes = msgpack.packb(tuple(ban))
    return packed


def decode_ban(value: bytes) -> BanRow:
    """Return the ban of a row. Raises WireError."""
    found = unpack(value, "a ban")
    if not isinstance(found, list):
        raise WireError("a ban is malformed")
    return rows(BanRow, [found])[0]


def is_open_pattern(ban: BanRow) -> bool:
    """Whether a ban's pattern begins with a wildcard, so that every client id has to be compared with it."""
    return ban.kind == PATTERN and not pattern_of(ban.value).beginning


class BanIndex:
    """The bans of several sources (brokers), any of which is in force; `len()` counts what is banned."""

    def __init__(self) -> None:
        self._sources: dict[BanKey, dict[str, BanRow]] = {}
        self._networks: dict[tuple[int, int], dict[int, BanKey]] = {}
        self._patterns: dict[int, dict[str, dict[BanKey, Callable[[str], object]]]] = {}
        """By the length of the text before the first wildcard, and by that text."""

    def __len__(self) -> int:
        return len(self._sources)

    def put(self, source: str, ban: BanRow) -> None:
        """A source has this ban, of a value as `checked` writes it. Raises ValueError for another one."""
        key = key_of(ban)
        if key not in self._sources:
            self._add(key)
        self._sources.setdefault(key, {})[source] = ban

    def drop(self, source: str, key: BanKey) -> None:
        """A source has this ban no longer."""
        found = self._sources.get(key)
        if found is None or found.pop(source, None) is None or found:
            return
        del self._sources[key]
        self._remove(key)

    def replace(self, source: str, bans: Iterable[BanRow]) -> None:
        """A source has these bans and no others."""
        new = {key_of(ban): ban for ban in bans}
        for key in [key for key, found in self._sources.items() if source in found and key not in new]:
            self.drop(source, key)
        for ban in new.values():
            self.put(source, ban)

    def find(self, client_id: str, user: str, packed: bytes, now_ms: int) -> BanRow | None:
        """The ban of a client by its id, its user ("" = not known) or its address of 4 or 16 bytes."""
        if not self._sources:
            return None
        found = self._in_force((CLIENT_ID, client_id), now_ms)
        if found is None and user:
            found = self._in_force((USER, user), now_ms)
        if found is not None:
            return found
        size, number = len(packed), int.from_bytes(packed, "big")
        for (of_size, bits), values in self._networks.items():
            if of_size == size:
                key = values.get(number >> (size * 8 - bits))
                found = None if key is None else self._in_force(key, now_ms)
                if found is not None:
                    return found
        for length, by_beginning in self._patterns.items():
            for key, fits in by_beginning.get(client_id[:length], {}).items():
                if fits(client_id):
                    found = self._in_force(key, now_ms)
                    if found is not None:
                        return found
        return None

    def _in_force(self, key: BanKey, now_ms: int) -> BanRow | None:
        for ban in self._sources.get(key, {}).values():
            if not ban.until_ms or ban.until_ms > now_ms:
                return ban
        return None

    def _add(self, key: BanKey) -> None:
        kind, value = key
        if kind == ADDRESS:
            network = network_of(value)
            self._networks.setdefault((network.size, network.bits), {})[network.value] = key
        elif kind == PATTERN:
            pattern = pattern_of(value)
            beginnings = self._patterns.setdefault(len(pattern.beginning), {})
            beginnings.setdefault(pattern.beginning, {})[key] = pattern.matcher()

    def _remove(self, key: BanKey) -> None:
        kind, value = key
        if kind == ADDRESS:
            network = network_of(value)
            place = network.size, network.bits
            values = self._networks[place]
            values.pop(network.value, None)
            if not values:
                del self._networks[place]
        elif kind == PATTERN:
            beginning = pattern_of(value).beginning
            beginnings = self._patterns[len(beginning)]
            del beginnings[beginning][key]
            if not beginnings[beginning]:
                del beginnings[beginning]
            if not beginnings:
                del self._patterns[len(beginning)]
