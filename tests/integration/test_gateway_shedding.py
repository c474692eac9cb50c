"""A gateway with more clients than it should have sends some of them away, and they are told where to go."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from mqtt_client import MqttClient
from processes import Stack, running_stack, wait_until

from holdmq.mqtt import Disconnect

CLIENTS = 8
ABOVE = 5


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    settings = {
        "gateway.workers": 1,
        "gateway.shed_above": ABOVE,
        "gateway.shed_rate": 2,
        "gateway.server_reference": "other.example:1883",
    }
    with running_stack(tmp_path_factory.mktemp("shed"), **settings) as stack:
        yield stack


def test_clients_beyond_the_bound_are_sent_to_another_server(stack: Stack) -> None:
    clients = [MqttClient(stack.mqtt_port, f"shed-{n}", clean=True, expiry_s=0) for n in range(CLIENTS)]
    wait_until(
        lambda: stack.metric("gateway", "holdmq_gateway_shed_total") >= CLIENTS - ABOVE, "some are sent away"
    )
    assert stack.metric("gateway", "holdmq_gateway_sessions") == ABOVE
    told = []
    for client in clients:
        # Who was sent away has been told by now.
        with contextlib.suppress(TimeoutError):
            told.append(client.wait_for(Disconnect, 0.05))
    assert [one.reason_code for one in told] == [0x9C] * (CLIENTS - ABOVE)
    assert {one.properties.server_reference for one in told} == {"other.example:1883"}
