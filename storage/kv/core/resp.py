"""Commands as a server reads them (RESP): records are sent from where they lie."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

Word = str | int | bytes | bytearray | memoryview
Piece = bytes | bytearray | memoryview

APART_BYTES: Final = 16 << 10
"""From this size on a word is a piece by itself: a copy of less costs less than a call of the system."""


def pieces_of(commands: Iterable[Sequence[Word]]) -> list[Piece]:
    """The pieces of commands, to be sent one after the other. A memoryview must be of contiguous bytes."""
    pieces: list[Piece] = []
    made: list[Piece] = []
    for words in commands:
        made.append(b"*%d\r\n" % len(words))
        for word in words:
            raw: Piece
            if isinstance(word, str):
                raw = word.encode()
            elif isinstance(word, int):
                raw = b"%d" % word
            else:
                raw = word
            size = len(raw)
            if size < APART_BYTES:
                made += (b"$%d\r\n" % size, raw, b"\r\n")
            else:
                made.append(b"$%d\r\n" % size)
                pieces += (b"".join(made), raw)
                made = [b"\r\n"]
    pieces.append(b"".join(made))
    return pieces
