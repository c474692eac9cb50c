"""What the parent answers on its admin port, and what it tells the workers."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest

from gateway.parent import control
from gateway.parent.control import LINES_WAITING_MAX, TRACES_MAX, Controls
from holdmq.credentials.login_failures import LoginFailures, Rules, login_row
from holdmq.service.admin import ControlAnswer

BAN = {"principal": "c1", "address": "0a000001", "left_s": 60.0, "connects": 9}


def not_woken() -> None:
    """The supervisor looks by itself."""


def rows(answer: ControlAnswer) -> list[dict[str, Any]]:
    return [json.loads(piece) for piece in answer.pieces if piece.strip()]


def test_a_ban_of_one_worker_is_told_to_the_others_and_to_those_that_start() -> None:
    controls = Controls(2, not_woken)
    controls.received(0, {"ban": BAN})
    assert controls.take() == [({"ban": BAN}, 0)]
    assert controls.take() == []
    (command,) = controls.in_force()
    assert command["ban"]["principal"] == "c1"  # type: ignore[index]


def test_bans_are_listed_and_lifted() -> None:
    woken: list[bool] = []
    controls = Controls(2, lambda: woken.append(True))
    controls.received(0, {"ban": BAN})
    controls.received(1, {"ban": {**BAN, "principal": "c2"}})
    controls.take()
    assert [(r["principal"], r["address"]) for r in rows(controls.bans("GET", {}))] == [
        ("c1", "10.0.0.1"),
        ("c2", "10.0.0.1"),
    ]
    assert rows(controls.bans("POST", {"principal": "c1"})) == [{"lifted": 1}]
    assert controls.take() == [({"unban": "c1"}, -1)]
    assert rows(controls.bans("POST", {"all": "1"})) == [{"lifted": 1}]
    assert controls.take() == [({"unban": None}, -1)]
    assert len(woken) == 2
    assert rows(controls.bans("GET", {})) == []


def test_a_ban_that_is_over_is_not_listed() -> None:
    controls = Controls(1, not_woken)
    controls.received(0, {"ban": {**BAN, "left_s": -1.0}})
    assert rows(controls.bans("GET", {})) == []
    assert controls.in_force() == []


def test_logins_that_one_worker_saw_are_told_to_the_others_and_kept_for_those_that_start() -> None:
    failures = LoginFailures(Rules(2, 600, 600, 3600), b"key")
    controls = Controls(2, not_woken, failures)
    stranger = failures.login(bytes(4), "ada")
    failed = {"login_failed": login_row(stranger)}
    known = {"logins_known": [login_row(failures.login(b"\x0a\0\0\1", "meter-1"))]}
    for message in (failed, failed, failed, known):
        controls.received(1, message)
    assert controls.take() == [(failed, 1)] * 3 + [(known, 1)]
    # A worker that is forked now has these.
    assert controls.login_failures is failures
    assert failures.is_held(stranger, time.monotonic())
    assert failures.known == 1
    assert rows(controls.bans("POST", {"principal": "ada"})) == [{"lifted": 1}]
    assert rows(controls.bans("POST", {"all": "1"})) == [{"lifted": 1}]  # the address
    assert not failures.is_held(stranger, time.monotonic())


def test_who_lifts_bans_must_say_whose() -> None:
    assert Controls(1, not_woken).bans("POST", {}).status == 400
    assert Controls(1, not_woken).bans("POST", {"principal": "c", "all": "1"}).status == 400


def test_lines_of_all_workers_come_until_the_trace_is_over() -> None:
    controls = Controls(2, not_woken)
    answer = controls.trace("GET", {"client": "c1", "topic": "a/#", "seconds": "2"})
    ((command, nobody),) = controls.take()
    assert command == {"trace": 1, "client": "c1", "topic": "a/#", "seconds": 2.0}
    assert nobody == -1
    controls.received(0, {"trace": 1, "lines": [{"packet": "CONNECT"}]})
    controls.received(1, {"trace": 1, "lines": [{"packet": "PUBLISH"}], "left_out": 3})
    controls.received(1, {"trace": 9, "lines": [{"packet": "of another"}]})
    found = rows(answer)
    assert [row.get("packet") for row in found] == [None, "CONNECT", "PUBLISH", None]
    assert found[0]["workers"] == 2
    assert found[-1] == {"event": "ended", "why": "its time is over", "left_out": 3}
    assert controls.take() == [({"untrace": 1}, -1)]


def test_a_reader_that_goes_away_ends_the_trace() -> None:
    controls = Controls(1, not_woken)
    lines = iter(controls.trace("GET", {"client": "c1", "seconds": "60"}).pieces)
    next(lines)
    controls.take()
    lines.close()  # type: ignore[attr-defined]
    assert controls.take() == [({"untrace": 1}, -1)]


def test_a_reader_that_is_gone_before_its_trace_began_ends_it_as_well() -> None:
    controls = Controls(1, not_woken)
    for _ in range(TRACES_MAX + 1):
        answer = controls.trace("GET", {"client": "c1", "seconds": "60"})
        assert answer.status == 200
        answer.pieces.close()  # type: ignore[attr-defined]


def test_a_trace_shows_so_much_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "TRACE_BYTES_MAX", 100)
    controls = Controls(1, not_woken)
    answer = controls.trace("GET", {"client": "c1", "seconds": "60"})
    controls.received(0, {"trace": 1, "lines": [{"packet": "x" * 40}] * 5})
    assert rows(answer)[-1]["why"] == "it has shown 0 MiB"


def test_lines_that_nobody_takes_are_left_out_and_counted() -> None:
    controls = Controls(1, not_woken)
    answer = controls.trace("GET", {"client": "c1", "seconds": "60"})
    controls.received(0, {"trace": 1, "lines": [{}] * (LINES_WAITING_MAX + 5)})
    controls.end_traces()
    (first, last) = rows(answer)
    assert first["event"] == "traced"
    assert last["why"] == "a worker is started again"
    assert last["left_out"] == LINES_WAITING_MAX + 5


def test_no_more_traces_run_at_a_time_than_the_bound() -> None:
    controls = Controls(1, not_woken)
    running = [controls.trace("GET", {"client": "c", "seconds": "60"}) for _ in range(TRACES_MAX)]
    assert controls.trace("GET", {"client": "c"}).status == 400
    readers = [threading.Thread(target=rows, args=(answer,)) for answer in running]
    for reader in readers:
        reader.start()
    controls.end_traces()
    for reader in readers:
        reader.join(40)
    assert controls.trace("GET", {"client": "c"}).status == 200


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"client": "c", "seconds": "0"},
        {"client": "c", "seconds": "1e9"},
        {"client": "c", "seconds": "nan"},
        {"client": "c", "seconds": "x"},
        {"client": "c", "topic": "a/#/b"},
    ],
    ids=str,
)
def test_a_trace_that_makes_no_sense_is_a_mistake(query: dict[str, str]) -> None:
    answer = Controls(1, not_woken).trace("GET", query)
    assert answer.status == 400
    assert rows(answer)[0]["error"]
