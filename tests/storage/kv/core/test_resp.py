from __future__ import annotations

from storage.kv.core.resp import APART_BYTES, Word, pieces_of


def parsed(raw: bytes) -> list[list[bytes]]:
    """The commands in RESP."""
    commands = []
    while raw:
        head, raw = raw.split(b"\r\n", 1)
        assert head[:1] == b"*"
        words = []
        for _ in range(int(head[1:])):
            size, raw = raw.split(b"\r\n", 1)
            assert size[:1] == b"$"
            words.append(raw[: int(size[1:])])
            assert raw[int(size[1:]) :][:2] == b"\r\n"
            raw = raw[int(size[1:]) + 2 :]
        commands.append(words)
    return commands


def test_words_of_each_kind_are_what_a_server_reads() -> None:
    commands: list[list[Word]] = [
        ["FCALL", 12, -3, 1 << 62, b"\r\n\0", bytearray(b"abc"), memoryview(b"xyz")[1:], ""],
        ["ZÄHLE"],
    ]
    assert parsed(b"".join(pieces_of(commands))) == [
        [b"FCALL", b"12", b"-3", b"4611686018427387904", b"\r\n\0", b"abc", b"yz", b""],
        ["ZÄHLE".encode()],
    ]


def test_nothing_is_no_bytes() -> None:
    assert b"".join(pieces_of([])) == b""


def test_a_large_word_is_sent_from_where_it_lies() -> None:
    records = memoryview(bytearray(APART_BYTES))
    commands: list[list[Word]] = [["A", records, 7], ["B", bytes(APART_BYTES - 1)], ["C", records]]
    pieces = pieces_of(commands)
    assert [piece is records for piece in pieces] == [False, True, False, True, False]
    assert parsed(b"".join(pieces)) == [
        [b"A", bytes(APART_BYTES), b"7"],
        [b"B", bytes(APART_BYTES - 1)],
        [b"C", bytes(APART_BYTES)],
    ]
