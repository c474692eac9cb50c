from __future__ import annotations

import pytest

from holdmq.errors import RemoteError, WireError
from holdmq.quotas.limits import (
    QuotaBook,
    check_quota,
    decode_quota,
    encode_quota,
    has_limit,
    parse_principal,
)
from holdmq.wire.quota_headers import KEY, TENANT, USER, QuotaRow


def test_a_quota_is_what_its_row_says() -> None:
    quota = QuotaRow(TENANT, "acme", 1, 2, 3, 4, 5, 6, "ada", 7)
    check_quota(quota)
    assert decode_quota(encode_quota(quota)) == quota
    with pytest.raises(WireError):
        decode_quota(b"\xc0")


@pytest.mark.parametrize("text", ["acme", "group:g", "user:", ":x", ""])
def test_who_cannot_have_a_quota_is_refused_with_who_can(text: str) -> None:
    with pytest.raises(RemoteError, match="tenant:NAME, user:NAME, key:NAME"):
        parse_principal(text)


def test_a_name_may_have_a_colon() -> None:
    assert parse_principal("user:a:b") == (USER, "a:b")


@pytest.mark.parametrize(
    ("quota", "says"),
    [
        (QuotaRow(KEY, "k", sessions=1), "a key has no limit of sessions; it has publish_rate"),
        (QuotaRow(USER, "u", kept_bytes=1), "a user has no limit of kept_bytes"),
        (QuotaRow(USER, "u", topics=1), "a user has no limit of topics"),
        (QuotaRow(USER, "u", publish_rate=-1), "publish_rate -1 is not between 0 and"),
        (QuotaRow(USER, "u", connections=1 << 53), "connections 9007199254740992 is not between"),
        (QuotaRow(USER, "u"), "without a limit"),
        (QuotaRow(USER, "u" * 1025, connections=1), "at most 1024 bytes"),
        (QuotaRow("colour", "red", connections=1), "not for 'colour:red'"),
    ],
)
def test_what_is_no_quota_is_refused_with_why(quota: QuotaRow, says: str) -> None:
    with pytest.raises(RemoteError, match=says):
        check_quota(quota)


def test_one_without_a_quota_of_its_own_has_that_of_everybody_of_its_kind() -> None:
    book = QuotaBook()
    assert book.of("user:ada") is None
    everybody, own = QuotaRow(USER, "*", 5), QuotaRow(USER, "ada", connections=7)
    book.put(everybody)
    assert (book.has_rates, book.has_counts) == (True, False)
    book.put(own)
    assert book.of("user:ada") == own
    assert book.of("user:eve") == everybody
    assert book.of("key:ada") is None
    assert book.has_counts
    assert book.own("user:eve") is None
    assert book.drop(USER, "ada")
    assert not book.drop(USER, "ada")
    assert not book.has_counts
    book.replace([])
    assert (book.has_rates, len(book), list(book)) == (False, 0, [])
    assert not has_limit(QuotaRow(USER, "x"))
