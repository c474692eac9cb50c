"""Client ids over real processes: whose they are, sessions in the way, and how many a user has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from access_files import password_file, written
from mqtt_client import MqttClient, connect_again
from processes import Stack, running_stack, wait_until

from holdmq.mqtt import MQTT_3_1_1, MQTT_5, Disconnect

OPEN = "pattern readwrite #\n"
OWN = f"{OPEN}pattern clientid %u:*\nuser root\nclientid *\n"
MONTH_S = 30 * 86_400
SESSIONS = 3


@pytest.fixture
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("ids")
    settings = {
        "access.password_file": password_file(directory / "users", ada="x", eve="x", root="x"),
        "access.acl_file": written(directory / "acl", OPEN),
        "access.reload_interval_s": 0.1,
        "gateway.workers": 2,
        "broker.sessions_per_user_max": SESSIONS,
    }
    with running_stack(directory, **settings) as stack:
        yield stack


def connect(
    stack: Stack, client_id: str, user: str, version: int = MQTT_5, clean: bool = False
) -> MqttClient:
    return MqttClient(
        stack.mqtt_port,
        client_id,
        version=version,
        clean=clean,
        expiry_s=MONTH_S,
        username=user,
        password=b"x",
    )


def code_of(client: MqttClient) -> int:
    return client.connack.reason_code


def every_worker_has(stack: Stack, text: str) -> None:
    """Write the ACL, and wait until no worker lets eve have an id of ada's."""
    written(stack.directory / "acl", text)

    def is_refused() -> bool:
        # The kernel chooses the worker; 2⁻²³ that it is always the same.
        clients = [connect(stack, f"ada:look-{n}", "eve", clean=True) for n in range(24)]
        codes = {code_of(client) for client in clients}
        for client in clients:
            client.close()
        return codes == {0x85}

    wait_until(is_refused, "every worker has the new file")


def test_who_sat_on_anothers_client_id_loses_it_with_all_that_was_kept(stack: Stack) -> None:
    eve = connect(stack, "ada:phone", "eve")
    assert eve.subscribe("spied/#").reason_codes == [1]
    eve.disconnect()
    eve = connect(stack, "ada:watch", "eve")
    assert code_of(connect(stack, "ada:phone", "ada")) == 0x85, "no line says that it is hers"
    assert code_of(connect(stack, "ada:phone", "ada", clean=True)) == 0x85
    every_worker_has(stack, OWN)
    assert eve.wait_for(Disconnect).reason_code == 0x87, "connected, and not allowed any more"
    root = connect(stack, "root", "root", clean=True)
    root.publish("spied/x", b"kept for eve")
    ada = connect(stack, "ada:phone", "ada")
    assert (code_of(ada), ada.connack.session_present) == (0, False)
    assert ada.subscribe("own/#").reason_codes == [1]
    root.publish("spied/x", b"not any more")
    root.publish("own/x", b"ada's")
    assert [(m.topic, m.payload) for m in ada.take(1)] == [("own/x", b"ada's")]
    assert stack.metric("broker", "holdmq_broker_session_foreign_ended_total") == 1
    ada.disconnect()
    assert code_of(connect(stack, "ada:phone", "eve")) == 0x85
    assert code_of(connect(stack, "ada:phone", "eve", MQTT_3_1_1)) == 0x85  # return code 2
    root.publish("own/x", b"while she was away")
    ada = connect(stack, "ada:phone", "ada")
    assert ada.connack.session_present
    assert [m.payload for m in ada.take(1)] == [b"while she was away"]


def test_an_owner_takes_the_id_from_who_is_connected_with_it(stack: Stack) -> None:
    every_worker_has(stack, OWN)
    ada = connect(stack, "ada:1", "ada")
    root = connect(stack, "ada:1", "root")
    assert (code_of(root), root.connack.session_present) == (0, False)
    assert ada.wait_for(Disconnect).reason_code == 0x8E
    root.ping()


def test_a_user_has_so_many_sessions_whatever_is_restarted(stack: Stack) -> None:
    for n in range(SESSIONS):
        client = connect(stack, f"kept-{n}", "eve")
        assert code_of(client) == 0
        client.disconnect()
    assert code_of(connect(stack, "more", "eve")) == 0x97
    stack.restart("broker")
    wait_until(lambda: stack.metric("broker", "holdmq_broker_session_sweeps_total") >= 1, "rows are counted")
    wait_until(lambda: code_of(connect(stack, "more", "eve")) == 0x97, "the gateway has found the broker")
    wait_until(lambda: code_of(connect(stack, "more", "ada")) == 0, "another user's")
    back = connect_again(stack.mqtt_port, "kept-0", username="eve", password=b"x")
    assert back.connack.session_present
    back.disconnect(expiry_s=0)
    wait_until(lambda: code_of(connect(stack, "more-2", "eve")) == 0, "the one that ended has made room")
    assert stack.metric("broker", "holdmq_broker_session_user_full_total") >= 1
