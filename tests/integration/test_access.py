"""Access over real processes: sessions and their users, stored subscriptions, and the guide."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from access_files import password_file, written
from guides import examples_of, run_console, run_python
from mqtt_client import MqttClient
from processes import Stack, free_port, running_stack, wait_until

from gateway.access.core.acl import OWNS, AclRules
from gateway.access.core.tenants import UserTenants
from holdmq.mqtt import MQTT_3_1_1, MQTT_5, ConnAck, PubAck, Publish

StackMaker = Callable[..., Stack]
ACL = "user ada\ntopic readwrite a/#\ntopic readwrite b/#\nuser eve\ntopic readwrite #\ntopic readwrite a/#\n"
LESS = "user ada\ntopic readwrite b/#\nuser eve\ntopic readwrite #\n"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("access")
    settings = {
        "access.password_file": password_file(directory / "users", ada="x", eve="y"),
        "access.acl_file": written(directory / "acl", ACL),
        "access.reload_interval_s": 0.1,
    }
    with running_stack(directory, **settings) as stack:
        yield stack


def connect(
    stack: Stack, client_id: str, user: str, *, version: int = MQTT_5, clean: bool = False
) -> MqttClient:
    word = {"ada": b"x", "eve": b"y"}[user]
    return MqttClient(stack.mqtt_port, client_id, version=version, clean=clean, username=user, password=word)


def code_of(answer: ConnAck) -> int:
    return answer.reason_code


def test_a_session_is_its_users_alone_connected_and_offline(stack: Stack) -> None:
    ada = connect(stack, "shared-id", "ada")
    assert code_of(connect(stack, "shared-id", "eve").connack) == 0x85
    assert code_of(connect(stack, "shared-id", "eve", clean=True).connack) == 0x85
    ada.ping()
    ada.disconnect()
    assert code_of(connect(stack, "shared-id", "eve").connack) == 0x85
    old = connect(stack, "shared-id", "eve", version=MQTT_3_1_1)
    assert code_of(old.connack) == 0x85  # return code 2
    back = connect(stack, "shared-id", "ada")
    assert back.connack.session_present
    back.disconnect(expiry_s=0)


def test_a_user_is_shown_as_the_owner_of_the_session(stack: Stack) -> None:
    from command_line import run_here

    client = connect(stack, "owned", "ada")
    listed = run_here("session", "list", "--json", f"--set=registry.port={stack.registry_port}")
    assert '"principal": "ada"' in listed.stdout
    client.disconnect(expiry_s=0)


def test_a_worker_that_dies_loses_no_users_session(stack: Stack) -> None:
    ada = connect(stack, "survivor", "ada")
    assert ada.subscribe("a/x").reason_codes == [1]
    stack.kill_workers()
    assert code_of(connect(stack, "survivor", "eve").connack) == 0x85
    back = connect(stack, "survivor", "ada")
    assert back.connack.session_present
    back.publish("a/x", b"1")
    assert [m.payload for m in back.take(1)] == [b"1"]
    back.disconnect(expiry_s=0)


def test_a_refused_publish_is_not_retained_either(stack: Stack) -> None:
    ada = connect(stack, "keeper", "ada", clean=True)
    ada.send(Publish("c/secret", b"no", 1, retain=True, packet_id=1))
    assert ada.wait_for(PubAck).reason_code == 0x87
    ada.send(Publish("a/kept", b"yes", 1, retain=True, packet_id=2))
    assert ada.wait_for(PubAck).reason_code == 0
    eve = connect(stack, "reader", "eve", clean=True)
    assert eve.subscribe("c/#", "a/#").reason_codes == [1, 1]
    assert [(m.topic, m.payload) for m in eve.take(1)] == [("a/kept", b"yes")]
    eve.ping()
    assert eve.received == []
    ada.send(Publish("a/kept", b"", 1, retain=True, packet_id=3))
    assert ada.wait_for(PubAck).reason_code == 0


def test_what_is_not_allowed_any_more_is_not_delivered_to_who_comes_back(stack: Stack) -> None:
    ada = connect(stack, "stored", "ada")
    assert ada.subscribe("a/x", "b/x").reason_codes == [1, 1]
    ada.disconnect()
    revoked = stack.metric("gateway", "holdmq_gateway_filters_revoked_total")
    written(stack.directory / "acl", LESS)
    try:
        wait_until(
            lambda: stack.log("gateway").count("a file of access was read again") >= 1, "the file was seen"
        )
        eve = connect(stack, "publisher", "eve", clean=True)
        wait_until(lambda: _is_refused(stack), "every worker has the new file")
        eve.publish("a/x", b"no")
        eve.publish("b/x", b"yes")
        ada = connect(stack, "stored", "ada")
        assert ada.connack.session_present
        assert [m.payload for m in ada.take(1)] == [b"yes"]
        wait_until(
            lambda: stack.metric("gateway", "holdmq_gateway_filters_revoked_total") > revoked, "counted"
        )
        ada.disconnect()
    finally:
        written(stack.directory / "acl", ACL)
    wait_until(lambda: not _is_refused(stack), "the old file is back")
    # The row went as well: being allowed again does not bring it back.
    ada = connect(stack, "stored", "ada")
    eve = connect(stack, "publisher", "eve", clean=True)
    eve.publish("a/x", b"no")
    eve.publish("b/x", b"again")
    assert [m.payload for m in ada.take(1)] == [b"again"]
    ada.disconnect(expiry_s=0)


def _is_refused(stack: Stack) -> bool:
    """Whether workers that connections meet refuse a/x; all of them do the same soon.

    The kernel chooses the worker; 2⁻²³ that it is always the same.
    """
    codes = set()
    for n in range(24):
        client = connect(stack, f"look-{n}", "ada", clean=True)
        codes.add(client.subscribe("a/x").reason_codes[0])
        client.disconnect(expiry_s=0)
    return codes == {0x87}


# The guide


@pytest.mark.timeout(600)
def test_the_examples_of_access_md_run(holdmq_stack: StackMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    stack = holdmq_stack(services=("registry", "broker"))
    users, commands = examples_of("access.md", "console")
    configuration, of_tenants, plugins = examples_of("access.md", "toml")
    program, token, own = examples_of("access.md", "python")
    (tenants,) = examples_of("access.md", "text")
    acl, ids = examples_of("access.md", "acl")
    assert AclRules.parse(ids.code).id_right("ada", "legacy-42") == OWNS
    port = str(free_port())

    def moved(text: str) -> str:
        return re.sub(r"\b1883\b", port, text)

    run_console(users, [], stack.directory)
    (stack.directory / "acl").write_text(acl.code)
    file = stack.directory / "holdmq.toml"
    file.write_text(moved(configuration.code))
    (stack.directory / "plugins.toml").write_text(plugins.code)
    (stack.directory / "tenants.toml").write_text(of_tenants.code)
    (stack.directory / "users.tenants").write_text(tenants.code)
    assert UserTenants.parse(tenants.code).of("meter-7") == "acme"
    for name in ("holdmq.toml", "plugins.toml", "tenants.toml"):
        run_console(
            users._replace(code=f"$ holdmq config check --config {name}\nthe configuration is valid…\n"),
            [],
            stack.directory,
        )
    monkeypatch.setenv("HOLDMQ_CONFIG", str(file))
    stack.set("gateway.port", port)
    stack.start("gateway")
    monkeypatch.delenv("HOLDMQ_CONFIG")
    run_console(commands._replace(code=moved(commands.code)), [], stack.directory)
    run_python(program._replace(code=moved(program.code)), stack.registry, stack.directory)
    for plugin in (token, own):
        run_python(plugin, stack.registry, stack.directory)
    assert (stack.directory / "users.passwd").stat().st_mode & 0o777 == 0o600
    refused = 'holdmq_gateway_refused_total{reason="%s"}'
    for reason in ("bad_user_name_or_password", "publish_not_authorized", "subscribe_not_authorized"):
        wait_until(lambda r=reason: stack.metric("gateway", refused % r) >= 1, reason)  # type: ignore[misc]


def test_a_configuration_of_no_use_stops_the_gateway_with_one_sentence(
    tmp_path: Path, holdmq_stack: StackMaker
) -> None:
    stack = holdmq_stack(services=())
    stack.set("access.acl_file", written(tmp_path / "acl", "topik a\n"))
    process = stack.start("gateway", wait=False)
    assert process.wait(40) == 2
    del stack.processes["gateway"]
    said = "(access.acl_file), line 1: 'topik' is not user, topic, pattern or clientid"
    assert said in stack.log("gateway")
