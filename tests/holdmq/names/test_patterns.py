from __future__ import annotations

import time

import pytest

from holdmq.names.patterns import pattern_of


@pytest.mark.parametrize(
    ("pattern", "fit", "unfit"),
    [
        ("meter-", ["meter-", "meter-1", "meter-1/x"], ["Meter-1", "a meter-1", "meter"]),
        ("meter-*", ["meter-", "meter-1\n2"], ["a meter-"]),
        ("*-7", ["meter-7", "-7"], ["meter-71", "7"]),
        ("m?t", ["mat", "m\nt"], ["mt", "maat"]),
        ("a[b]*", ["a[b]", "a[b]c"], ["ab"]),
        (r"a\*b", ["a*b", "a*bc"], ["axb"]),
        (r"a\?*", ["a?", "a?x"], ["ax"]),
        (r"\\*", ["\\", "\\x"], ["x"]),
        ("*", ["", "x"], []),
        ("", ["", "x"], []),
    ],
)
def test_a_pattern_fits_whole_names_and_a_text_their_beginning(
    pattern: str, fit: list[str], unfit: list[str]
) -> None:
    matches = pattern_of(pattern).matcher()
    assert [name for name in fit if not matches(name)] == []
    assert [name for name in unfit if matches(name)] == []


def test_the_text_before_the_first_wildcard_is_known() -> None:
    assert pattern_of("meter-*-7").beginning == "meter-"
    assert pattern_of(r"a\*b?").beginning == "a*b"
    assert pattern_of("?x").beginning == ""


def test_a_pattern_of_many_stars_takes_no_time_and_one_of_too_many_is_refused() -> None:
    matches = pattern_of("a*" * 16 + "b").matcher()
    began = time.monotonic()
    assert not matches("a" * 20_000)
    assert time.monotonic() - began < 2
    with pytest.raises(ValueError, match="at most 16 stars"):
        pattern_of("*" * 17)
