"""What devices choose is read on terminals, and nothing else happens there."""

from __future__ import annotations

import unicodedata

import pytest

from holdmq.names.visible_text import visible, visible_lines


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\x1b[2J\x9b31m", "\\x1b[2J\\x9b31m"),
        ("a\rerror: b\nc\td", "a\\rerror: b\\nc\\td"),
        ("gnp.\u202egpj", "gnp.\\u202egpj"),
        ("a\u2066b\u2069\u061c\ufeff", "a\\u2066b\\u2069\\u061c\\ufeff"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\U000e0041"),
    ],
)
def test_what_a_terminal_obeys_is_shown_as_an_escape(text: str, shown: str) -> None:
    assert visible(text) == shown


@pytest.mark.parametrize("text", ["devices/äöü/温度 1", "C:\\new", "👩\u200d💻", "می\u200cخواهم", ""])
def test_what_people_write_stays(text: str) -> None:
    assert visible(text) == text
    assert visible_lines(text) == text


def test_a_payload_keeps_its_lines_and_tabs_and_no_return_that_would_overwrite_them() -> None:
    assert visible_lines("a\n\tb\r\x1bc") == "a\n\tb\\r\\x1bc"


def test_no_character_of_control_or_direction_goes_by() -> None:
    strong = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    for number in range(0x110000):
        char = chr(number)
        if (
            unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp")
            or unicodedata.bidirectional(char) in strong
        ):
            assert visible(char) != char, hex(number)
            assert visible(char).isascii()
