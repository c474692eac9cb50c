"""Which client ids a user may take, what becomes of who has one, and the other user's session in the way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from access_files import password_file, written
from tapped_broker import TappedSessions, persistent

from holdmq.mqtt import MQTT_3_1_1, MQTT_5, Disconnect, Publish, Will

Start = Callable[..., Awaitable[Any]]
ADA = {"username": "ada", "password": b"x"}
EVE = {"username": "eve", "password": b"y"}
OPEN = "pattern readwrite #\n"
OWN = f"{OPEN}pattern clientid %u:*\npattern clientid shared-*\n"


@pytest.fixture
def acl(tmp_path: Path) -> Callable[[str], str]:
    return lambda text: written(tmp_path / "acl", text)


@pytest.fixture
def access(tmp_path: Path, acl: Callable[[str], str]) -> dict[str, Any]:
    users = password_file(tmp_path / "passwd", ada="x", eve="y")
    return {"acl_file": acl(OWN), "password_file": users, "reload_interval_s": 0.05}


@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
async def test_a_client_id_that_no_line_allows_is_refused_before_anything_is_asked(
    start_worker: Start, table: TappedSessions, access: dict[str, Any], version: int
) -> None:
    running = await start_worker(access=access)
    refused = await running.client("ada:1", version, **EVE, refused=True)
    assert refused.connack.reason_code == 0x85  # return code 2
    assert running.worker.counters.refused["client_identifier_not_valid"] == 1
    assert table.core.counts.opens == 0
    await running.client("eve:1", version, **EVE)
    await running.client("shared-1", version, **EVE)


async def test_an_id_that_was_made_here_needs_no_line(
    start_worker: Start, table: TappedSessions, access: dict[str, Any]
) -> None:
    running = await start_worker(access=access)
    client = await running.client("", MQTT_5, **EVE)
    made = client.connack.properties.assigned_client_identifier
    assert running.worker.clients.session(made).principal == "eve"
    kept = await running.client("", MQTT_5, **EVE, will=Will("a", b"gone"))
    assert kept.connack.reason_code == 0


async def test_who_may_not_have_its_id_any_more_is_disconnected_and_the_others_stay(
    start_worker: Start, table: TappedSessions, access: dict[str, Any], acl: Callable[[str], str]
) -> None:
    acl(OPEN)
    running = await start_worker(access=access)
    eve = await running.client("ada:1", MQTT_5, **EVE)
    old = await running.client("ada:2", MQTT_3_1_1, **EVE)
    ada = await running.client("ada:3", MQTT_5, **ADA)
    nameless = await running.client("", MQTT_5, **EVE)
    acl(OWN)
    told = await eve.next()
    assert isinstance(told, Disconnect)
    assert told.reason_code == 0x87
    with pytest.raises(EOFError):
        await old.next()
    assert running.worker.counters.client_ids_revoked_total == 2
    for client in (ada, nameless):
        client.send(Publish("a", b"", 1, packet_id=1))
        assert await client.acked(1) == [1]


async def test_a_session_in_the_way_ends_if_a_line_gives_its_id_to_who_comes(
    start_worker: Start, table: TappedSessions, access: dict[str, Any], acl: Callable[[str], str]
) -> None:
    acl(OPEN)
    running = await start_worker(access=access)
    eve = await persistent(running, "ada:1", **EVE)
    await eve.subscribe("spied/#")
    shared = await persistent(running, "shared-1", **EVE)
    assert (await running.client("ada:1", MQTT_5, **ADA, refused=True)).connack.reason_code == 0x85
    # Eve's connection is not looked at: what ends it is the owner's word.
    running.worker.access.files.acl = type(running.worker.access.files.acl).parse(OWN)
    ada = await persistent(running, "ada:1", **ADA)
    assert not ada.connack.session_present
    assert (await eve.next()).reason_code == 0x8E
    assert table.filters("ada:1") == []
    assert table.core.counts.foreign_ended == 1
    refused = await running.client("shared-1", MQTT_5, **ADA, refused=True)
    assert refused.connack.reason_code == 0x85, "a line for everybody makes nobody an owner"
    shared.send(Publish("a", b"", 1, packet_id=1))
    assert await shared.acked(1) == [1]


async def test_who_comes_while_the_other_still_waits_for_the_owner_has_it(
    start_worker: Start, table: TappedSessions, access: dict[str, Any], acl: Callable[[str], str]
) -> None:
    acl(f"{OPEN}user ada\nclientid *\nuser eve\nclientid eve*\n")
    running = await start_worker(access=access)
    table.opens.hold()
    eve = asyncio.create_task(running.client("eve1", MQTT_5, **EVE))
    await running.until(lambda: table.opens.held)
    ada = asyncio.create_task(running.client("eve1", MQTT_5, **ADA))
    await running.until(lambda: len(table.opens.held) == 2)
    with pytest.raises(EOFError):
        await eve
    table.opens.release()
    assert (await ada).connack.reason_code == 0
    assert running.worker.clients.session("eve1").principal == "ada"


async def test_an_acl_that_changes_while_the_owner_decides_counts_for_who_waits(
    start_worker: Start, table: TappedSessions, access: dict[str, Any], acl: Callable[[str], str]
) -> None:
    acl(OPEN)
    running = await start_worker(access=access)
    version = running.worker.access.version
    table.opens.hold()
    waiting = asyncio.create_task(running.client("ada:1", MQTT_5, **EVE))
    await running.until(lambda: table.opens.held)
    acl(OWN)
    await running.until(lambda: running.worker.access.version > version)
    table.opens.release()
    eve = await waiting
    assert (await eve.next()).reason_code == 0x87
    assert running.worker.clients.session("ada:1") is None
