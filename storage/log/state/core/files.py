"""State files as rows of one table: which file consists of which chunks, and what a new version appends.

::

    key    | 'f' | name, UTF-8 |        value  | 1 (format) | size 8 | ids of its chunks 16 each |
    key    | 'c' | id, hex     |        value  | 0 or 1 (compressed) | content |

A new version appends the chunks that are not there yet, in as many batches as they need, then in one row
which chunks the file has from now on, then that chunks which no file has any more are gone. Whatever a crash
or a cut of the log leaves of these, each file is as one of its versions was: half of one is never seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final, NamedTuple

from holdmq.errors import RecordError
from storage.api.tables import KeyChange
from storage.log.state.core.chunks import ID_BYTES, Chunk, chunks_of, decode_chunk, encode_chunk

CONFIG_TOPIC: Final = "%CONFIG%"
"""The table whose rows these are: what a broker of one copy has in its directory `config`."""
CONFIG_QUEUE: Final = 0
FILE_BYTES_MAX: Final = 256 << 20
"""As large as `holdmq.files.atomic_file` reads one."""
_FORMAT: Final = 1
_HEAD: Final = Struct(">BQ")
_FILE: Final = "f"
_CHUNK: Final = "c"


class Listing(NamedTuple):
    """What a file consists of: its size in bytes and the ids of its chunks in their order."""

    size_bytes: int
    ids: tuple[bytes, ...]


class LoggedFiles:
    """All state files as the rows below `position` say; older rows than what is known change nothing.

    One thread at a time may change it.
    """

    def __init__(self) -> None:
        self.position = 0
        """The log below it is in here."""
        self._listings: dict[str, Listing] = {}
        self._chunks: dict[bytes, bytes] = {}
        """As they lie in the log: compressed."""

    @property
    def is_empty(self) -> bool:
        """Whether the log has no row of any file."""
        return not self._listings and not self._chunks

    @property
    def size_bytes(self) -> int:
        """Memory that the chunks take."""
        return sum(map(len, self._chunks.values()))

    def clear(self) -> None:
        """Forget everything: it is read anew."""
        self.position = 0
        self._listings.clear()
        self._chunks.clear()

    # Rows

    def apply(self, key: bytes, value: bytes | None) -> str | None:
        """Take a row, or that a key has none any more; the name of the file that is another one by it.

        Rows come in the order of the log. Raises RecordError for what is no row of state files.
        """
        kind, name = chr(key[0]) if key else "", key[1:].decode()
        if kind == _CHUNK:
            if value is None:
                self._chunks.pop(bytes.fromhex(name), None)
            else:
                self._chunks[bytes.fromhex(name)] = value
            return None
        if kind != _FILE:
            raise RecordError(f"{CONFIG_TOPIC} has the key {key[:40]!r}, of no known kind")
        if value is None:
            return name if self._listings.pop(name, None) is not None else None
        self._listings[name] = _listing_of(name, value)
        return name

    # Files

    def names(self) -> list[str]:
        """The names of all files."""
        return list(self._listings)

    def listing(self, name: str) -> Listing | None:
        """What a file consists of; None = there is none of that name."""
        return self._listings.get(name)

    def content(self, name: str) -> bytes | None:
        """A file's content; None = there is none of that name. RecordError if a chunk of it is missing."""
        listing = self._listings.get(name)
        if listing is None:
            return None
        try:
            content = b"".join([decode_chunk(self._chunks[id_]) for id_ in listing.ids])
        except KeyError as error:
            raise RecordError(f"the chunk {error.args[0].hex()} of {name} is missing") from None
        if len(content) != listing.size_bytes:
            raise RecordError(f"{name} has {len(content)} bytes, {listing.size_bytes} were written")
        return content

    # Changes

    def replaced(self, name: str, content: bytes) -> list[KeyChange]:
        """The rows that give a file this content, in the order in which they must be appended."""
        if len(content) > FILE_BYTES_MAX:
            raise RecordError(f"{name} has {len(content)} bytes; a state file has at most {FILE_BYTES_MAX}")
        parts = chunks_of(content)
        chunks = {chunk.id: chunk for chunk in parts}
        listing = Listing(len(content), tuple(chunk.id for chunk in parts))
        if self._listings.get(name) == listing:
            return []
        after = {**self._listings, name: listing}
        return [*self._missing(chunks.values()), _listed(name, listing), *self._orphans(after)]

    def removed(self, name: str) -> list[KeyChange]:
        """The rows that remove a file; none if there is none."""
        if name not in self._listings:
            return []
        after = {other: listing for other, listing in self._listings.items() if other != name}
        return [KeyChange(CONFIG_QUEUE, _FILE + name, None), *self._orphans(after)]

    def _missing(self, chunks: Iterable[Chunk]) -> Iterator[KeyChange]:
        for chunk in chunks:
            if chunk.id not in self._chunks:
                yield KeyChange(CONFIG_QUEUE, _CHUNK + chunk.id.hex(), encode_chunk(chunk.content))

    def _orphans(self, after: dict[str, Listing]) -> Iterator[KeyChange]:
        """What no file has any more; with it what a crash left of a version that was never whole."""
        kept = {id_ for listing in after.values() for id_ in listing.ids}
        for id_ in sorted(self._chunks.keys() - kept):
            yield KeyChange(CONFIG_QUEUE, _CHUNK + id_.hex(), None)


def is_listing(change: KeyChange) -> bool:
    """Whether this row says what a file consists of: with it the change is made."""
    return change.key.startswith(_FILE)


def _listed(name: str, listing: Listing) -> KeyChange:
    return KeyChange(
        CONFIG_QUEUE, _FILE + name, _HEAD.pack(_FORMAT, listing.size_bytes) + b"".join(listing.ids)
    )


def _listing_of(name: str, value: bytes) -> Listing:
    ids = value[_HEAD.size :]
    if len(value) < _HEAD.size or len(ids) % ID_BYTES:
        raise RecordError(f"the row of {name} is cut")
    version, size = _HEAD.unpack_from(value)
    if version != _FORMAT:
        raise RecordError(f"the row of {name} is of format {version}; this HoldMQ knows {_FORMAT}")
    return Listing(size, tuple(ids[at : at + ID_BYTES] for at in range(0, len(ids), ID_BYTES)))
