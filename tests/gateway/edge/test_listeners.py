from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from security import Authority

from gateway.edge import listeners
from gateway.edge.listeners import CertificateWatch, Listener, listeners_of
from gateway.edge.tls import Tls
from gateway.worker import serving
from holdmq.config.listeners import ListenerSettings
from holdmq.config.model import Config, GatewaySection
from holdmq.errors import ConfigError


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def settings_of(authority: Authority, lifetime: dt.timedelta | None = None) -> ListenerSettings:
    files = authority.issue("gateway", lifetime=lifetime)
    return ListenerSettings(
        name="devices", kind="tls", port=0, tls_cert=str(files.cert), tls_key=str(files.key)
    )


def damage(path: str) -> None:
    """Write nonsense, as an editor that was interrupted."""
    Path(path).write_text("-----BEGIN CERT")


def test_a_listener_without_layers_is_plain() -> None:
    (default,) = listeners_of(GatewaySection())
    assert default.is_plain
    assert default.numbers() == {
        "connections": 0,
        "accepted_total": 0,
        "certificate_expires_at": 0.0,
        "refused": {},
    }
    behind_proxy = ListenerSettings(
        name="p", kind="tcp", port=0, proxy=True, proxy_networks=["10.0.0.0/8", "2001:db8::/32"]
    )
    listener = Listener(behind_proxy, 4096)
    assert not listener.is_plain
    trusted = ("10.1.2.3", "2001:db8::1")
    assert [listener.trusts(a) for a in (*trusted, "11.0.0.1", "::1", "", "x")] == [True] * 2 + [False] * 4


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"tls_cert": "absent.pem"},
            r"tls_cert of the listener 'devices' is absent\.pem, which does",
        ),
        ({"tls_client_ca": "absent.pem"}, r"absent\.pem \(tls_client_ca of the listener 'devices'\)"),
        ({"tls_key": "ca-key"}, r"\(tls_key of the listener 'devices'\) is not the key of"),
        ({"tls_cert": "damaged"}, r"'devices'\) are no PEM certificate and unencrypted key"),
        ({"tls_key": "open"}, r"tls_key of the listener 'devices': .*chmod 600"),
        ({"tls_cert": "expired"}, r"the listener 'devices': the certificate .* is of no use: .*expired"),
    ],
)
def test_a_certificate_of_no_use_is_said_with_listener_and_file(
    authority: Authority, tmp_path: Path, change: dict[str, str], sentence: str
) -> None:
    told: dict[str, Any] = settings_of(authority).model_dump(exclude_unset=True)
    ((key, value),) = change.items()
    if value == "ca-key":
        told[key] = str(authority.issue("other").key)
    elif value == "damaged":
        damage(told["tls_cert"])
    elif value == "open":
        os.chmod(told["tls_key"], 0o644)
    elif value == "expired":
        told |= settings_of(authority, dt.timedelta(seconds=-1)).model_dump(exclude_unset=True)
    else:
        told[key] = value
    with pytest.raises(ConfigError, match=sentence):
        Listener(ListenerSettings(**told), 4096)


def hosts_of(listener: Listener) -> set[str]:
    """Those of some names under which WebSocket clients may ask."""
    assert listener.websocket is not None
    asked = {
        "localhost",
        "gw.example",
        "new.example",
        "app.example",
        "evil.example",
        "broker-0.broker",
        "[::1]",
    }
    return {host for host in asked if listener.websocket.hosts.allows(host)}


def test_websocket_clients_ask_for_names_of_the_configuration_the_pages_and_the_certificate(
    authority: Authority,
) -> None:
    config = Config.model_validate(
        {
            "broker": {"advertise": "broker-0.broker:10911"},
            "gateway": {
                "listeners": [
                    {"name": "a", "kind": "ws", "port": 1},
                    {"name": "b", "kind": "ws", "port": 2, "ws_origins": ["https://app.example:444"]},
                    {"name": "c", "kind": "ws", "port": 3, "ws_origins": ["*"]},
                ]
            },
        }
    )
    always = {"localhost", "[::1]"}
    plain, *listeners = listeners_of(config.gateway, config.host_names())
    assert plain.websocket is None
    broker = "broker-0.broker"
    assert [hosts_of(one) for one in listeners] == [
        {*always, broker},
        {*always, broker, "app.example"},
        {*always, broker},
    ]
    files = authority.issue("gateway", ("gw.example",))
    told = {"tls_cert": str(files.cert), "tls_key": str(files.key)}
    secure = Listener(ListenerSettings(name="s", kind="wss", port=0, **told), 4096)
    assert hosts_of(secure) == {*always, "gw.example"}
    # A certificate that takes its place brings its names.
    authority.issue("gateway", ("new.example",))
    CertificateWatch([secure], 60, 0).look(False)
    assert hosts_of(secure) == {*always, "new.example"}


async def test_what_changed_is_read_again_and_what_is_damaged_changes_nothing(
    authority: Authority, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = settings_of(authority)
    listener = Listener(settings, 4096)
    assert listener.tls is not None
    watch = CertificateWatch([listener], 60, 0)
    first = listener.tls.newest
    watch.look(False)
    assert listener.tls.newest is first
    authority.issue("gateway", lifetime=dt.timedelta(days=40))
    watch.look(False)
    second = listener.tls.newest
    assert second is not first
    damage(settings.tls_cert)
    watch.look(False)
    watch.look(False)
    assert watch.reloads_failed_total == 1
    watch.look(True)
    assert watch.reloads_failed_total == 2
    assert listener.tls.newest is second
    assert "'devices'" in capsys.readouterr().out
    authority.issue("gateway")
    watch.look(False)
    assert listener.tls.newest is not second


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_session_is_not_resumed_once_the_certificates_were_read_again(
    authority: Authority, version: ssl.TLSVersion
) -> None:
    listener = Listener(settings_of(authority), 4096)
    context = ssl.create_default_context(cafile=authority.ca)
    context.minimum_version = context.maximum_version = version

    def connect(session: ssl.SSLSession | None) -> tuple[ssl.SSLSession | None, bool | None]:
        assert listener.tls is not None
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = context.wrap_bio(incoming, outgoing, server_hostname="localhost", session=session)
        server = Tls(listener.tls.newest)
        while not server.is_open:
            with contextlib.suppress(ssl.SSLWantReadError):
                client.do_handshake()
            server.receive_data(outgoing.read())
            incoming.write(server.data_to_send())
        with contextlib.suppress(ssl.SSLWantReadError):
            client.do_handshake()
        server.close()
        return client.session, client.session_reused

    session, _ = connect(None)
    if version == ssl.TLSVersion.TLSv1_2:
        assert connect(session)[1]
    assert listener.tls is not None
    listener.tls.reload()
    assert not connect(session)[1]


async def test_when_the_certificates_cannot_be_looked_at_any_more_it_is_said(
    start_worker: Callable[..., Any], authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(serving.log, "critical", lambda event, **_: said.append(event))
    told = settings_of(authority).model_dump(exclude_unset=True)
    running = await start_worker(told)

    def look(_is_asked: bool) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(running.worker.certificates, "look", look)
    running.worker.reload()
    await running.until(lambda: said == ["nobody looks at certificates any more"])


async def test_the_files_are_looked_at_at_intervals_and_at_once_when_told(authority: Authority) -> None:
    listener = Listener(settings_of(authority), 4096)
    assert listener.tls is not None
    for interval_s, is_told in ((0.02, False), (60.0, True)):
        watch = CertificateWatch([listener], interval_s, 0)
        running = asyncio.create_task(watch.run())
        before = listener.tls.newest
        authority.issue("gateway")
        if is_told:
            watch.reload_soon()
        async with asyncio.timeout(40):
            while listener.tls.newest is before:
                await asyncio.sleep(0.01)
        running.cancel()


async def test_without_certificates_there_is_nothing_to_look_at() -> None:
    await asyncio.wait_for(CertificateWatch(listeners_of(GatewaySection()), 60, 0).run(), 40)


def test_a_certificate_that_ends_soon_is_warned_of_once_a_day_by_one_worker(
    authority: Authority, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = Listener(settings_of(authority, dt.timedelta(days=3)), 4096)

    async def look(worker: int, times: int) -> str:
        watch = CertificateWatch([listener], 60, worker)
        for _ in range(times):
            watch.look(False)
        return capsys.readouterr().out

    said = asyncio.run(look(0, 3))
    assert said.count("expires soon") == 1
    assert "gateway.pem" in said
    assert asyncio.run(look(1, 1)) == ""
    monkeypatch.setattr(listeners, "EXPIRY_SAID_EVERY_S", 0.0)
    assert asyncio.run(look(0, 3)).count("expires soon") == 3
