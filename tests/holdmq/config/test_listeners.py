from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from holdmq.config.listeners import LISTENERS_MAX, ListenerSettings
from holdmq.config.model import GatewaySection
from holdmq.config.sources import load
from holdmq.errors import ConfigError

TLS = {"tls_cert": "a.pem", "tls_key": "a-key.pem"}
GOOD: dict[str, dict[str, Any]] = {
    "tcp": {"kind": "tcp", "port": 1884},
    "tls": {"kind": "tls", "port": 8883, **TLS},
    "mutual TLS": {
        "kind": "tls",
        "port": 8883,
        **TLS,
        "tls_client_ca": "ca.pem",
        "require_client_certificate": True,
    },
    "ws": {"kind": "ws", "port": 8083, "ws_path": "/", "ws_origins": ["*", "https://a.example:8443"]},
    "wss": {"kind": "wss", "port": 8084, **TLS, "ws_path": "/mqtt/devices"},
    "unix": {"kind": "unix", "path": "/run/holdmq/mqtt.sock", "mode": "666"},
    "proxy": {
        "kind": "wss",
        "port": 1,
        **TLS,
        "proxy": True,
        "proxy_networks": ["10.0.0.0/8", "::1", "fd00::/8"],
    },
}
BAD = [
    ({"kind": "udp", "port": 1}, "'tcp', 'tls', 'ws', 'wss' or 'unix'"),
    ({"kind": "tcp", "port": 1, "name": "Über"}, "pattern"),
    ({"kind": "tcp", "port": 65536}, "less than or equal to 65535"),
    ({"kind": "tcp"}, "of kind tcp needs a port"),
    ({"kind": "tcp", "port": 1, "path": "/x"}, "path is set, which is only for a listener with kind = unix"),
    ({"kind": "tcp", "port": 1, "mode": "0600"}, "mode is set"),
    (
        {"kind": "tcp", "port": 1, **TLS},
        "tls_cert is set, which is only for a listener with kind = tls or wss",
    ),
    ({"kind": "ws", "port": 1, "require_client_certificate": True}, "require_client_certificate is set"),
    ({"kind": "tls", "port": 1, "tls_cert": "a"}, "needs tls_key"),
    ({"kind": "wss", "port": 1, "tls_key": "a"}, "needs tls_cert"),
    ({"kind": "tls", "port": 1, **TLS, "require_client_certificate": True}, "needs tls_client_ca"),
    ({"kind": "tls", "port": 1, **TLS, "ws_path": "/x"}, "ws_path is set"),
    ({"kind": "ws", "port": 1, "ws_path": "mqtt"}, "no path of a URL"),
    ({"kind": "ws", "port": 1, "ws_path": "/mqtt?a"}, "no path of a URL"),
    ({"kind": "ws", "port": 1, "ws_origins": ["app.example"]}, "no origin"),
    ({"kind": "ws", "port": 1, "ws_origins": ["https://app.example/"]}, "no origin"),
    ({"kind": "unix"}, "needs path"),
    ({"kind": "unix", "path": "/" + "x" * 107}, "more than the 107 bytes"),
    (
        {"kind": "unix", "path": "/x", "port": 1},
        "port is set, which is only for a listener with another kind",
    ),
    ({"kind": "unix", "path": "/x", "bind": "::"}, "bind is set"),
    ({"kind": "unix", "path": "/x", "mode": "0668"}, "no file mode"),
    ({"kind": "unix", "path": "/x", "mode": "rw"}, "no file mode"),
    ({"kind": "unix", "path": "/x", "proxy": True, "proxy_networks": ["::/0"]}, "not for UNIX sockets"),
    ({"kind": "tcp", "port": 1, "proxy": True}, "proxy needs proxy_networks"),
    ({"kind": "tcp", "port": 1, "proxy_networks": ["10.0.0.0/8"]}, "only for a listener with proxy = true"),
    ({"kind": "tcp", "port": 1, "proxy": True, "proxy_networks": ["10.0.0.1/8"]}, "has host bits set"),
]


@pytest.mark.parametrize("name", GOOD)
def test_a_listener_is_taken_as_it_is_given(name: str) -> None:
    made = ListenerSettings(name="x", **GOOD[name])
    assert made.model_dump(exclude_unset=True) == {"name": "x", **GOOD[name]}
    assert made.uses_tls is ("tls_cert" in GOOD[name])
    assert made.uses_websocket is made.kind.startswith("ws")


@pytest.mark.parametrize(("given", "sentence"), BAD)
def test_what_makes_no_sense_is_refused_with_a_sentence(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError) as raised:
        ListenerSettings(**{"name": "x", **given})
    assert sentence in raised.value.errors()[0]["msg"]


@pytest.mark.parametrize(
    ("listener", "sentence"),
    [
        ('name = "a"\nkind = "ws"\nprot = 1', r'unknown key "gateway\.listeners\[0\]\.prot".*mean "port"\?'),
        (
            'name = "a"\nkind = "ws"',
            r'"gateway\.listeners\[0\]" \(named "a"\) in .* is wrong: .* needs a port',
        ),
        ('name = "a"\nport = 1', r'the key "gateway\.listeners\[0\]\.kind" is missing in .* \(named "a"\)'),
        (
            'name = "a"\nkind = "ws"\nport = "1"',
            r'the value "1" of "gateway\.listeners\[0\]\.port" .*integer',
        ),
        (
            'name = "a"\nkind = "ws"\nport = 1\nws_path = "x"',
            r"\[0\]\.ws_path\" in .* is wrong: 'x' is no path",
        ),
    ],
)
def test_the_listener_and_its_key_are_named_when_a_file_is_wrong(
    tmp_path: Path, listener: str, sentence: str
) -> None:
    file = tmp_path / "holdmq.toml"
    file.write_text(f"[[gateway.listeners]]\n{listener}\n")
    with pytest.raises(ConfigError, match=sentence):
        load(file, environ={})


def test_listeners_may_be_given_as_json_in_the_environment_and_by_set() -> None:
    told = [{"name": "local", "kind": "unix", "path": "/run/mqtt.sock"}]
    for config in (
        load(environ={"HOLDMQ_GATEWAY__LISTENERS": json.dumps(told)}),
        load(None, [f"gateway.listeners={json.dumps(told)}"], {}),
    ):
        (listener,) = config.gateway.listeners
        assert (listener.kind, listener.where) == ("unix", "/run/mqtt.sock")
    with pytest.raises(ConfigError, match=r'"gateway\.listeners\[0\]" in --set is wrong: input should be a'):
        load(None, ["gateway.listeners=1884"], {})


def listener(name: str, port: int, **settings: Any) -> ListenerSettings:
    return ListenerSettings(**{"name": name, "kind": "tcp", "port": port, **settings})


def test_the_plain_keys_are_the_default_listener_until_it_is_switched_off() -> None:
    section = GatewaySection(port=1, listeners=[listener("a", 2)])
    assert [(found.name, found.port) for found in section.all_listeners()] == [("default", 1), ("a", 2)]
    section = GatewaySection(default_listener=False, listeners=[listener("a", 1883)])
    assert [found.name for found in section.all_listeners()] == ["a"]


@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        ({"default_listener": False}, "nobody could connect"),
        ({"listeners": [listener("a", 1), listener("a", 2)]}, "two gateway.listeners are named 'a'"),
        ({"listeners": [listener("default", 1)]}, "two gateway.listeners are named 'default'"),
        ({"listeners": [listener("a", 1883)]}, "'default' and 'a' are both at 127.0.0.1:1883"),
        (
            {"listeners": [ListenerSettings(name=n, kind="unix", path="/x") for n in ("a", "b")]},
            "'a' and 'b' are both at /x",
        ),
        ({"listeners": [listener(f"l{n}", n + 1) for n in range(LISTENERS_MAX)]}, "at most 32 listeners"),
    ],
)
def test_listeners_that_do_not_go_together_are_refused(section: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as raised:
        GatewaySection(**section).anonymous_allowed()
    assert sentence in str(raised.value)


def test_ports_that_the_kernel_chooses_are_never_the_same() -> None:
    assert len(GatewaySection(port=0, listeners=[listener("a", 0)]).all_listeners()) == 2


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"bind": "0.0.0.0"}, "the listener 'a' is at 0.0.0.0:1, which other machines can reach"),
        ({"bind": "::"}, r"the listener 'a' is at [::]:1, which"),
        ({"proxy": True, "proxy_networks": ["127.0.0.1"]}, "the listener 'a' serves a proxy, which"),
    ],
)
def test_a_listener_that_others_can_reach_needs_an_explicit_choice(
    settings: dict[str, Any], sentence: str
) -> None:
    listeners = [listener("a", 1, **settings)]
    with pytest.raises(ConfigError) as raised:
        GatewaySection(listeners=listeners).anonymous_allowed()
    assert sentence in str(raised.value)
    assert GatewaySection(listeners=listeners, allow_anonymous=True).anonymous_allowed()


def test_what_only_this_machine_reaches_needs_none() -> None:
    local = ListenerSettings(name="l", kind="unix", path="/run/mqtt.sock")
    assert GatewaySection(listeners=[local, listener("a", 1)]).anonymous_allowed()
    # The plain keys do not count when nobody listens there.
    assert GatewaySection(bind="0.0.0.0", default_listener=False, listeners=[local]).anonymous_allowed()
