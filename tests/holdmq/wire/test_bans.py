from __future__ import annotations

import random
import socket

import pytest

from holdmq.errors import RemoteError
from holdmq.names.networks import network_of
from holdmq.names.patterns import pattern_of
from holdmq.wire.ban_headers import ADDRESS, CLIENT_ID, PATTERN, USER, BanRow
from holdmq.wire.bans import BanIndex, checked, decode_ban, encode_ban, is_open_pattern, key_of

HERE = socket.inet_aton("10.1.2.3")


def ban(kind: str, value: str, until_ms: int = 0) -> BanRow:
    return checked(BanRow(kind, value, until_ms=until_ms))


def test_a_client_is_found_by_each_of_what_is_known_of_it() -> None:
    index = BanIndex()
    for n, one in enumerate(
        (
            ban(CLIENT_ID, "a"),
            ban(USER, "u"),
            ban(ADDRESS, "10.1.2.3/8"),
            ban(PATTERN, "m-*-7"),
            ban(PATTERN, "*z"),
        )
    ):
        index.put(f"broker-{n}", one)
    away = socket.inet_aton("11.0.0.1")
    for client_id, user, address, value in (
        ("a", "", away, "a"),
        ("b", "u", away, "u"),
        ("b", "", HERE, "10.0.0.0/8"),
        ("m-1-7", "", away, "m-*-7"),
        ("xz", "", away, "*z"),
    ):
        found = index.find(client_id, user, address, 1)
        assert found is not None
        assert found.value == value
    assert index.find("b", "v", away, 1) is None
    assert index.find("ab", "", socket.inet_pton(socket.AF_INET6, "a01::"), 1) is None


def test_what_any_source_has_is_in_force_until_its_end() -> None:
    index = BanIndex()
    index.put("one", ban(CLIENT_ID, "a", 100))
    index.put("two", ban(CLIENT_ID, "a", 200))
    assert index.find("a", "", HERE, 150) is not None
    assert index.find("a", "", HERE, 200) is None
    index.drop("two", (CLIENT_ID, "a"))
    assert index.find("a", "", HERE, 99) is not None
    assert index.find("a", "", HERE, 150) is None
    index.replace("one", [ban(USER, "u")])
    assert index.find("a", "", HERE, 0) is None
    assert len(index) == 1
    index.replace("one", [])
    assert len(index) == 0


def test_changes_one_by_one_leave_what_a_look_at_all_finds() -> None:
    chance = random.Random(3)
    index = BanIndex()
    kept: dict[tuple[str, str], BanRow] = {}
    values = {
        CLIENT_ID: ["a", "ab", "b1"],
        USER: ["u", "v"],
        ADDRESS: ["10.0.0.0/8", "10.1.0.0/16", "10.1.2.3", "::/0"],
        PATTERN: ["a*", "*1", "a?", "ab*", "b?"],
    }
    for _ in range(2_000):
        kind = chance.choice(list(values))
        one = ban(kind, chance.choice(values[kind]))
        if chance.random() < 0.5:
            index.put("s", one)
            kept[key_of(one)] = one
        else:
            index.drop("s", key_of(one))
            kept.pop(key_of(one), None)
        client_id, user = chance.choice(["a", "ab", "b1", "c"]), chance.choice(["", "u", "w"])
        address = socket.inet_aton(chance.choice(["10.1.2.3", "10.9.9.9", "11.1.1.1"]))
        fits = [
            b
            for b in kept.values()
            if (b.kind == CLIENT_ID and b.value == client_id)
            or (b.kind == USER and b.value == user)
            or (b.kind == ADDRESS and network_of(b.value).has(address))
            or (b.kind == PATTERN and pattern_of(b.value).matcher()(client_id))
        ]
        found = index.find(client_id, user, address, 1)
        assert (found in fits) if fits else found is None
    assert len(index) == len(kept)


def test_what_cannot_be_banned_is_refused_with_a_sentence() -> None:
    for wrong, sentence in (
        (BanRow("colour", "red"), "not of 'colour'"),
        (BanRow(USER, ""), "1 to 16384 bytes"),
        (BanRow(USER, "x" * 16_385), "1 to 16384 bytes"),
        (BanRow(USER, "u", "r" * 501), "at most 500 characters"),
        (BanRow(ADDRESS, "here"), "no address and no network"),
        (BanRow(PATTERN, "*" * 17), "at most 16 stars"),
    ):
        with pytest.raises(RemoteError, match=sentence):
            checked(wrong)


def test_a_row_has_all_of_a_ban() -> None:
    one = BanRow(ADDRESS, "10.0.0.0/8", "why", "ada", 5, 7)
    assert decode_ban(encode_ban(one)) == one
    assert [is_open_pattern(ban(PATTERN, text)) for text in ("a*", "*a", "?a")] == [False, True, True]
    assert not is_open_pattern(ban(CLIENT_ID, "*"))
