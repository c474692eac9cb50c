from __future__ import annotations

import random
from typing import Any

import pytest

from holdmq.errors import WireError
from holdmq.wire.client_headers import ClientListResponse, ClientRow, ClientSelection
from holdmq.wire.client_places import (
    ClientsPart,
    check_place,
    merged,
    part_of,
    selection_of,
    sorted_by,
)


def client(value: Any, client_id: str) -> ClientRow:
    return ClientRow(
        [value, client_id],
        client_id,
        "",
        "10.0.0.1",
        1,
        "mqtt",
        5,
        60,
        True,
        0,
        0,
        "g",
        0,
        0,
        [],
        0,
        0,
        0,
        0,
        0,
        0,
    )


@pytest.mark.parametrize("sort", ["connected", "-connected"])
def test_pages_of_many_parts_show_each_client_once_and_in_order(sort: str) -> None:
    """Each part gives at most three at a time, some fewer than they are asked for."""
    chance = random.Random(7)  # guards nothing
    order = sorted_by(sort)
    everybody = [(chance.randrange(6), f"c{n:02}") for n in range(60)]
    shares = [everybody[n::4] for n in range(4)]
    seen: list[tuple[Any, str]] = []
    after: tuple[Any, str] | None = None
    for _ in range(100):
        parts = []
        for share in shares:
            left = sorted(share, reverse=order.is_descending)
            if after is not None:
                left = [p for p in left if (p < after if order.is_descending else p > after)]
            shown = left[: chance.randint(1, 3)]
            end = shown[-1] if len(shown) < len(left) else None
            parts.append(ClientsPart([client(*place) for place in shown], len(share), end))
        page = merged(parts, order, 5)
        assert page.total == 60
        seen += [(row.order[0], row.client_id) for row in page.clients]
        after = page.end
        if after is None:
            break
    assert seen == sorted(everybody, reverse=order.is_descending)


def test_what_cannot_be_sorted_by_or_gone_on_behind_is_refused() -> None:
    with pytest.raises(WireError, match="not by 'colour'"):
        sorted_by("-colour")
    assert check_place([], sorted_by("user")) is None
    assert check_place(["u", "c"], sorted_by("user")) == ("u", "c")
    for wrong in (["u"], [1, "c"], ["u", 2]):
        with pytest.raises(WireError, match="a place in a list of clients"):
            check_place(wrong, sorted_by("user"))
    with pytest.raises(WireError, match="a client without a place"):
        part_of(
            ClientListResponse([tuple(client(1, "c")._replace(order=[]))], 1, [], [], []),
            sorted_by("version"),
        )


def test_a_selection_says_what_is_wrong_with_it() -> None:
    assert selection_of(["meter-*", "", "depot"]) == ClientSelection("meter-*", "", "depot")
    for wrong, sentence in (
        (["*" * 17], "at most 16 stars"),
        (["", "", "", "10.0.0.0/40"], "no address and no network"),
    ):
        with pytest.raises(WireError, match=sentence):
            selection_of(wrong)
