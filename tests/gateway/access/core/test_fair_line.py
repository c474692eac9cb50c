from __future__ import annotations

from gateway.access.core.fair_line import FairLine

A, B, C = b"a", b"b", b"c"


def drain(line: FairLine[str]) -> list[str]:
    taken: list[str] = []
    while (item := line.take()) is not None:
        taken.append(item)
    return taken


def test_one_key_is_served_in_its_order() -> None:
    line: FairLine[str] = FairLine(100)
    for n in range(3):
        assert line.put(A, f"a{n}")
    assert len(line) == 3
    assert drain(line) == ["a0", "a1", "a2"]
    assert len(line) == 0


def test_who_comes_first_goes_before_who_has_much_waiting() -> None:
    line: FairLine[str] = FairLine(1000)
    for n in range(400):
        line.put(A, f"a{n}")
    assert [line.take() for _ in range(3)] == ["a0", "a1", "a2"]
    line.put(B, "b0")
    assert line.take() == "b0"
    assert line.take() == "a3"


def test_keys_with_much_waiting_take_turns() -> None:
    line: FairLine[str] = FairLine(100)
    for n in range(3):
        for key in "abc":
            line.put(key.encode(), f"{key}{n}")
    taken = drain(line)
    assert len(taken) == 9
    for key in "abc":
        assert [item for item in taken if item[0] == key] == [f"{key}{n}" for n in range(3)]
    assert max(taken.index("a2"), taken.index("b2"), taken.index("c2")) - 6 <= 2


def test_who_comes_again_and_again_does_not_starve_who_waits() -> None:
    line: FairLine[str] = FairLine(100)
    line.put(A, "a0")
    line.put(A, "a1")
    assert line.take() == "a0"
    taken: list[str | None] = []
    for n in range(4):
        line.put(f"new{n}".encode(), "new")
        taken.append(line.take())
    assert "a1" in taken[:2]


def test_one_key_has_half_of_the_places_and_others_still_find_some() -> None:
    line: FairLine[str] = FairLine(100)
    assert sum(line.put(A, "a") for _ in range(1000)) == 50
    assert sum(line.put(B, "b") for _ in range(1000)) == 25
    assert line.put(C, "c")
    for n in range(1000):
        line.put(b"%d" % n, "x")
    assert len(line) == 100
    assert not line.put(b"one more", "x")
    line.take()
    assert line.put(b"one more", "x")
