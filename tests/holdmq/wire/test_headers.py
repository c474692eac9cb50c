from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import sys
from typing import Any, get_type_hints

import msgpack
import pytest

import holdmq.wire
from holdmq.errors import CODES, Code, WireError
from holdmq.wire import headers
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import SIGNATURES_MAX, Header, layout_of, rows
from holdmq.wire.headers import (
    FilterTerm,
    HeartbeatRequest,
    HelloRequest,
    ProduceRequest,
    ProduceRun,
    PullQueue,
    PullRequest,
    ReadOpenRequest,
    TopicCreateRequest,
)
from holdmq.wire.session_headers import SessionOpening
from holdmq.wire.untrusted import DEPTH_MAX

MODULES = [
    importlib.import_module(f"holdmq.wire.{found.name}")
    for found in pkgutil.iter_modules(holdmq.wire.__path__)
    if found.name.endswith("headers")
]
CLASSES = [
    kind
    for module in MODULES
    for _, kind in inspect.getmembers(module, inspect.isclass)
    if kind.__module__ == module.__name__
]
HEADERS = [kind for kind in CLASSES if issubclass(kind, Header)]
ROWS = [kind for kind in CLASSES if issubclass(kind, tuple)]
VALUES: dict[str, Any] = {
    "int": 7,
    "str": "text",
    "bytes": b"\x00\xff",
    "bool": True,
    "list": [],
    "dict": {"k": 1},
}


def value_of(annotation: str) -> Any:
    return VALUES[annotation.removesuffix("| None").strip().split("[")[0]]


def example(kind: Any) -> Any:
    return kind(**{f.name: value_of(str(f.type)) for f in dataclasses.fields(kind)})


def test_every_header_is_found() -> None:
    assert len(HEADERS) > 25
    assert len(ROWS) > 10


@pytest.mark.parametrize("kind", HEADERS)
def test_a_header_survives_the_wire(kind: Any) -> None:
    sent = example(kind)
    assert kind.from_ext(msgpack.unpackb(msgpack.packb(sent.to_ext()))) == sent


@pytest.mark.parametrize("kind", HEADERS)
def test_unknown_fields_are_ignored(kind: Any) -> None:
    sent = example(kind)
    assert kind.from_ext({**sent.to_ext(), "from_the_future": [1, 2]}) == sent


@pytest.mark.parametrize("kind", HEADERS)
def test_a_missing_field_is_named_or_has_its_default(kind: Any) -> None:
    whole = example(kind).to_ext()
    for f in dataclasses.fields(kind):
        ext = {k: v for k, v in whole.items() if k != f.name}
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            with pytest.raises(WireError, match=f"{kind.__name__}: required field {f.name!r}") as caught:
                kind.from_ext(ext)
            assert caught.value.code == Code.MISSING_FIELD
        else:
            assert kind.from_ext(ext) is not None


@pytest.mark.parametrize("kind", HEADERS)
def test_a_field_of_the_wrong_type_is_named(kind: Any) -> None:
    for f in dataclasses.fields(kind):
        with pytest.raises(WireError, match=f"{kind.__name__}: field {f.name!r} must be") as caught:
            kind.from_ext({**example(kind).to_ext(), f.name: 1.5})
        assert caught.value.code == Code.MISSING_FIELD


@pytest.mark.parametrize("kind", ROWS)
def test_rows_survive_the_wire_and_ignore_later_items(kind: Any) -> None:
    row = kind(*(value_of(getattr(a, "__forward_arg__", str(a))) for a in kind.__annotations__.values()))
    sent = msgpack.unpackb(msgpack.packb([row, [*row, "from the future"]]))
    assert rows(kind, sent) == [row, row]


def test_a_row_of_a_peer_that_knows_fewer_items_has_their_defaults() -> None:
    known = ["c", False, 60, "ada", 0]
    assert rows(SessionOpening, [known]) == [SessionOpening("c", False, 60, "ada", 0, b"", False)]
    assert rows(SessionOpening, [[*known, b"w"]])[0].will == b"w"
    assert rows(SessionOpening, [[*known, b"w", True, "new"]])[0].owns_id


@pytest.mark.parametrize("kind", ROWS)
def test_a_bad_row_is_named_by_its_place(kind: Any) -> None:
    row = list(
        kind(*(value_of(getattr(a, "__forward_arg__", str(a))) for a in kind.__annotations__.values()))
    )
    with pytest.raises(WireError, match=f"{kind.__name__} 1 must be an array"):
        rows(kind, [row, row[: len(row) - 1 - len(kind._field_defaults)]])
    with pytest.raises(WireError, match=f"{kind.__name__} 0 must be an array"):
        rows(kind, [7])
    for i, name in enumerate(kind._fields):
        with pytest.raises(WireError, match=f"{kind.__name__} 0: field {name!r} must be"):
            rows(kind, [[*row[:i], 1.5, *row[i + 1 :]]])


@pytest.mark.parametrize("kind", HEADERS)
def test_a_header_is_what_a_frozen_dataclass_is(kind: Any) -> None:
    sent, names = example(kind), [f.name for f in dataclasses.fields(kind)]
    values = [getattr(sent, name) for name in names]
    assert sent == kind(*values) == dataclasses.replace(sent)
    assert sent != object()
    assert not hasattr(sent, "__dict__")
    pairs = ", ".join(f"{name}={value!r}" for name, value in zip(names, values, strict=True))
    assert repr(sent) == f"{kind.__name__}({pairs})"
    if not any(isinstance(value, list | dict) for value in values):
        assert hash(sent) == hash(kind(*values))
    for name in [*names, "from_the_future"]:
        with pytest.raises(dataclasses.FrozenInstanceError, match=name):
            setattr(sent, name, None)
        with pytest.raises(dataclasses.FrozenInstanceError, match=name):
            delattr(sent, name)
    with pytest.raises(TypeError, match=rf"{kind.__name__}.__init__\(\)"):
        kind(*values, "from the future")
    assert [getattr(sent, name) for name in names] == values


def test_headers_of_two_kinds_are_never_equal() -> None:
    assert headers.Empty() != headers.HeartbeatRequest()
    assert TopicCreateRequest("t", 4) != TopicCreateRequest("t", 5)


def test_a_header_names_what_it_misses_and_takes_no_name_that_it_does_not_know() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'client_id'"):
        HelloRequest(1, "client")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'nix'"):
        HelloRequest(1, "client", "c", nix=1)  # type: ignore[call-arg]


def test_true_is_no_number_and_one_is_no_truth() -> None:
    with pytest.raises(WireError, match="'crc' must be int"):
        ProduceRequest.from_ext({"crc": True, "runs": []})
    with pytest.raises(WireError, match="'by_use' must be bool"):
        TopicCreateRequest.from_ext({"topic": "t", "by_use": 1})


def test_none_is_taken_only_where_it_means_something() -> None:
    assert ReadOpenRequest.from_ext({"reader_id": 1, "log_epoch": 0, "position": None}).position is None
    assert PullRequest.from_ext({"queues": [], "max_bytes": 1, "filter_id": None}).filter_id is None
    with pytest.raises(WireError, match="'client_id' must be str"):
        HelloRequest.from_ext({"protocol_version": 1, "role": "client", "client_id": None})


def test_a_right_header_lets_no_wrong_one_pass() -> None:
    right = PullRequest([PullQueue("t", 0, 0, 0)], 1, 0, 3).to_ext()
    assert PullRequest.from_ext(right).filter_id == 3
    for name, wrong in (("max_bytes", "1"), ("filter_id", True), ("hold_ms", None)):
        with pytest.raises(WireError, match=name):
            PullRequest.from_ext({**right, name: wrong})
    assert PullRequest.from_ext({**right, "filter_id": None}).filter_id is None
    assert rows(PullQueue, [["t", 0, 0, 0]]) == [PullQueue("t", 0, 0, 0)]
    with pytest.raises(WireError, match="PullQueue 1: field 'offset'"):
        rows(PullQueue, [["t", 0, 0, 0], ["t", 0, 0, None]])


def test_types_that_were_seen_are_bounded() -> None:
    @dataclasses.dataclass(frozen=True)
    class Numbered(Header):
        number: int

    for index in range(2 * SIGNATURES_MAX):
        kind = type(f"Number{index}", (int,), {})
        assert Numbered.from_ext({"number": kind(7)}).number == 7
    assert len(layout_of(Numbered).signatures) == SIGNATURES_MAX


def test_defaults_are_not_shared_between_headers() -> None:
    first = headers.HeartbeatRequest.from_ext({})
    first.state["x"] = 1
    assert headers.HeartbeatRequest.from_ext({}).state == {}


def test_annotations_are_types_that_the_wire_knows() -> None:
    for kind in [*HEADERS, *ROWS]:
        for name, hint in get_type_hints(kind, vars(sys.modules[kind.__module__])).items():
            assert str(hint), name


def test_golden_ext_fields() -> None:
    request = ProduceRequest(5, [ProduceRun("t", 1, 2, 3, 4, 5)])
    assert request.to_ext() == {
        "crc": 5,
        "runs": [("t", 1, 2, 3, 4, 5)],
        "want_positions": False,
        "delayed": [],
        "noted": [],
    }
    assert FilterTerm(1, "t", 9, "")._asdict() == {"kind": 1, "topic": "t", "hash": 9, "filter": ""}


def test_request_codes_are_never_renumbered() -> None:
    assert {code.name: int(code) for code in RequestCode} == {
        "HELLO": 1, "HEARTBEAT": 2, "BOUNDS_CHANGED": 3, "CONFIG_RELOAD": 4, "KEY_LIST": 5, "PRODUCE": 10,
        "PULL": 20, "FILTER_SET": 21,
        "PULL_COLUMNS": 22,
        "READ_OPEN": 30,
        "READ_FILTER": 31, "READ": 32, "READ_CLOSE": 33, "READ_AT": 34, "TOPIC_CREATE": 40, "TOPIC_LIST": 41,
        "QUEUE_BOUNDS": 42, "TOPIC_UPDATE": 43, "TOPIC_GROW": 44, "QUEUES_REMOVE": 45, "TOPIC_DELETE":
        46, "TOPIC_PAUSE": 47, "TOPIC_READERS": 48, "TOPIC_FIRST_GROUP": 49,
        "BROKER_STATUS": 50, "CONNECTION_LIST": 51, "STATISTICS": 52, "BACKLOG":
        53, "ALARM_LIST": 54, "BROKER_REGISTER": 60, "BROKER_UNREGISTER": 61, "ROUTE_GET": 62,
        "CLUSTER_GET": 63, "ORDER_GET": 64, "ORDER_SET": 65, "KEPT_COUNTS": 66,
        "SPREAD_DIGEST": 67, "SPREAD_PAGE": 68, "BROKER_FORGET": 69, "GROUP_JOIN": 70,
        "GROUP_LEAVE": 71, "GROUP_CHANGED": 72, "GROUP_MEMBERS": 73, "GROUP_LIST": 74,
        "GROUP_UPDATE": 75, "GROUP_DELETE": 76, "GROUP_PAUSE": 77, "QUEUE_LEASE": 78, "QUEUE_RELEASE": 79,
        "OFFSET_REPORT": 80,
        "OFFSET_GET": 81, "OFFSET_RESET": 82, "OFFSET_CLONE": 83, "SHARED_OPEN": 90, "SHARED_PULL": 91,
        "SHARED_ACK": 92, "SHARED_NACK": 93, "SHARED_EXTEND": 94, "SHARED_CLOSE": 95, "SHARED_STATE":
        96, "SEND_BACK": 100, "DELAY": 101, "DLQ_LIST": 102, "DLQ_RESEND": 103, "DLQ_PURGE": 104,
        "MESSAGE_GET": 110, "MESSAGE_FIND": 111, "MESSAGE_BACKWARDS": 112, "OFFSET_AT": 113,
        "TABLE_GET": 120, "TABLE_SCAN": 121, "TABLE_PUT": 122, "TABLE_DELETE": 123, "TABLE_WATCH": 124,
        "TABLE_CHANGED": 125, "TABLE_UNWATCH": 126, "SESSION_OPEN": 130, "SESSION_WRITE": 131,
        "SESSION_TAKEN": 132, "SESSION_LIST": 133, "SESSION_SHOW": 134, "SESSION_DROP": 135,
        "SESSION_RECORDS": 136, "SESSION_WILLS": 137, "SESSION_KICK": 138,
        "SHARE_JOIN": 140, "SHARE_LEAVE": 141, "SHARE_SETTLE": 142, "SHARE_READ": 143, "SHARE_LIST": 144,
        "RETAINED_PUT": 150, "RETAINED_SCAN": 151, "RETAINED_GET": 152,
        "REPLICA_HELLO": 160, "REPLICA_FETCH": 161, "REPLICA_STATUS": 162, "REPLICA_SWITCH": 163,
        "REPLICA_PROMOTE": 164, "REPLICA_TABLES": 165, "REPLICA_LIST": 166,
        "CLIENT_LIST": 170, "CLIENT_KICK": 171, "CLIENT_BUSIEST": 172, "GATEWAY_RELOAD": 173,
        "BAN_ADD": 180, "BAN_REMOVE": 181, "BAN_LIST": 182, "BAN_CHANGED": 183, "FLAPPING_LIST": 184,
        "QUOTA_SET": 200, "QUOTA_REMOVE": 201, "QUOTA_LIST": 202, "QUOTA_CHANGED": 203, "QUOTA_SPEND": 204,
        "PROCESS_HERE": 210, "PROCESS_LEAVE": 211, "REGISTRY_VIEW": 212, "REGISTRY_LEAVES": 213,
    }  # fmt: skip


def test_every_code_has_a_meaning() -> None:
    assert set(CODES) == set(Code)
    assert all(info.meaning for info in CODES.values())
    assert Code.OK == 0


def test_a_field_of_maps_has_names_as_keys_each_time_and_at_every_depth() -> None:
    state: dict[str, Any] = {"a": 1, "b": {"c": [{"d": 2}]}}
    assert HeartbeatRequest.from_ext({"state": state}).state == state
    for wrong in ({b"a": 1}, {"a": {b"b": 1}}, {"a": [[{"c": {b"d": 1}}]]}, {"a": 1, b"b": 2}):
        with pytest.raises(WireError, match="a key in field 'state' must be str"):
            HeartbeatRequest.from_ext({"state": wrong})
    for _ in range(DEPTH_MAX):
        state = {"a": state}
    with pytest.raises(WireError, match=f"'state' is more than {DEPTH_MAX} arrays and maps deep"):
        HeartbeatRequest.from_ext({"state": state})
