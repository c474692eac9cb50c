from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from any_disk import ANY_DISK
from processes import free_port
from tested_engine import own_server_flags

from console.identity.accounts import AccountFile
from holdmq.cli.up import locked, places, require_writable
from holdmq.cli.up_ports import addresses, reachable, refuse_conflicts, require_free_ports
from holdmq.cli.up_sign_in import SignIn, prepare_sign_in
from holdmq.config.analytics import ConsoleSection
from holdmq.config.listeners import ListenerSettings
from holdmq.config.model import Config, GatewaySection, RegistrySection
from holdmq.errors import ConfigError, StartupError

SERVICES = ["registry", "broker", "gateway", "stats", "console"]
URL = "http://127.0.0.1:8080"


@pytest.fixture
def free_ports() -> Callable[[], list[str]]:
    """Return ``--set`` flags that give every service ports which are free now."""

    def sets() -> list[str]:
        keys = addresses(Config(), SERVICES)
        return [part for key in keys for part in ("--set", f"{key}={free_port()}")]

    return sets


def test_everything_that_is_listened_on_is_known_by_its_key() -> None:
    found = addresses(Config(), SERVICES)
    assert found["gateway.port"] == ("127.0.0.1", 1883)
    assert found["stats.admin_port"] == ("127.0.0.1", 10915)
    assert len({port for _, port in found.values()}) == len(found)


def test_two_services_on_one_port_are_refused_with_both_keys() -> None:
    config = Config(registry=RegistrySection(port=1883))
    with pytest.raises(ConfigError, match=r"gateway\.port and registry\.port are both 1883"):
        refuse_conflicts(config, SERVICES)


def test_a_listener_on_the_port_of_a_service_is_refused_with_its_name() -> None:
    listener = ListenerSettings(name="web", kind="ws", port=8080)
    config = Config(gateway=GatewaySection(listeners=[listener]))
    with pytest.raises(ConfigError, match=r"the port of the listener 'web' and console\.port are both 8080"):
        refuse_conflicts(config, SERVICES)


def test_people_are_told_where_every_listener_is() -> None:
    listeners = [
        ListenerSettings(name="web", kind="ws", bind="::", port=8083),
        ListenerSettings(name="local", kind="unix", path="/run/mqtt.sock"),
    ]
    section = GatewaySection(listeners=listeners, allow_anonymous=True)
    found = places(Config(gateway=section), SERVICES)
    assert found["mqtt"] == "mqtt://127.0.0.1:1883"
    assert found["mqtt-web"] == "ws://[::1]:8083/mqtt"
    assert found["mqtt-local"] == "unix:///run/mqtt.sock"
    only = section.model_copy(update={"default_listener": False})
    assert places(Config(gateway=only), SERVICES)["mqtt"] == "ws://[::1]:8083/mqtt"
    assert "gateway.port" not in addresses(Config(gateway=only), SERVICES)


def test_a_port_chosen_by_the_kernel_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"gateway\.port is 0"):
        refuse_conflicts(Config(gateway=GatewaySection(port=0)), SERVICES)


def test_an_open_gateway_is_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match="allow_anonymous"):
        refuse_conflicts(Config(gateway=GatewaySection(bind="0.0.0.0")), SERVICES)


def test_a_host_that_is_none_is_refused() -> None:
    config = Config(registry=RegistrySection(bind="no.such.host.invalid"))
    with pytest.raises(StartupError, match=r'"no\.such\.host\.invalid" \(registry\) is no address'):
        require_free_ports(config, ["registry"])


def test_a_directory_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        StartupError, match=r"the data directory .*/file/data cannot be written: Not a directory"
    ):
        require_writable(tmp_path / "file" / "data")


def test_a_data_directory_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    with (
        locked(tmp_path),
        pytest.raises(StartupError, match=rf"another holdmq up \(process {os.getpid()}\) runs on"),
        locked(tmp_path),
    ):
        pytest.fail("the directory was locked twice")
    with locked(tmp_path):
        pass


def test_a_data_directory_that_is_open_is_closed_and_a_new_one_is_made_closed(tmp_path: Path) -> None:
    root = tmp_path / "data"
    with locked(root):
        assert root.stat().st_mode & 0o777 == 0o700
    root.chmod(0o755)
    with locked(root):
        assert root.stat().st_mode & 0o777 == 0o750


@pytest.mark.parametrize(
    ("bind", "address"), [("0.0.0.0", "127.0.0.1"), ("::", "::1"), ("10.0.0.1", "10.0.0.1")]
)
def test_a_wildcard_is_reached_by_loopback(bind: str, address: str) -> None:
    assert reachable(bind) == address


def test_a_busy_port_is_one_clear_sentence_before_anything_starts(
    holdmq: Any, tmp_path: Path, free_ports: Callable[[], list[str]]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = holdmq("up", "--data", str(tmp_path / "d"), *free_ports(), "--set", f"gateway.port={port}")
    assert done.returncode == 1
    assert done.stderr == (
        f"error: port {port} (gateway.port) on 127.0.0.1 is in use by another process; "
        "stop it, or choose another with --set gateway.port=PORT\n"
    )


def test_an_unwritable_data_directory_is_one_clear_sentence(holdmq: Any) -> None:
    done = holdmq("up", "--data", "/proc/holdmq")
    assert done.returncode == 1
    assert done.stderr.startswith("error: the data directory /proc/holdmq cannot be written: ")
    assert len(done.stderr.splitlines()) == 1


def test_a_missing_java_is_said_before_anything_starts(
    holdmq: Any, tmp_path: Path, free_ports: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    done = holdmq(
        "up",
        "--data",
        str(tmp_path / "d"),
        *free_ports(),
        JAVA_HOME="",
        PATH="",
        XDG_CACHE_HOME=str(tmp_path / "file"),
    )
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("or run without analytics: --without stats")


def test_only_what_devices_can_do_without_may_be_left_out(holdmq: Any) -> None:
    done = holdmq("up", "--without", "broker")
    assert done.returncode == 2
    assert done.stderr == "error: --without takes stats or console, not broker\n"


def signs_in(url: str, user: str, password: str) -> bool:
    """Whether the console at `url` takes this password."""
    asked = {"name": user, "password": password}
    return httpx.post(f"{url}/api/v1/session", json=asked, timeout=40).status_code == 200


def test_a_start_ends_with_the_consoles_address_and_user_and_once_the_first_password(
    tmp_path: Path, free_ports: Callable[[], list[str]], holdmq: Any
) -> None:
    command = [sys.executable, "-P", "-m", "holdmq.cli", "up", "--without", "stats"]
    command += ["--data", str(tmp_path / "data"), *own_server_flags(), "--set=gateway.workers=1"]
    command += [f"--set=storage.{name}={percent}" for name, percent in ANY_DISK.items()]

    def started(looks: Callable[[str, str, str], None]) -> str:
        """Start it, look at the console's address, its user and the rest of the line; return the log."""
        with (tmp_path / "up.log").open("wb") as log:
            up = subprocess.Popen([*command, *free_ports()], stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            assert up.stdout is not None
            ready, last = up.stdout.readline(), up.stdout.readline()
            assert ready.startswith("holdmq: ready "), (tmp_path / "up.log").read_text()
            said = re.fullmatch(r"holdmq: sign in at (http://127\.0\.0\.1:\d+) as (\S+?)([ ;].*)\n", last)
            assert said is not None, last
            assert said[1] in ready
            looks(*said.groups())
        finally:
            up.send_signal(signal.SIGTERM)
            rest, _ = up.communicate(timeout=100)
        assert (up.returncode, rest) == (0, "holdmq: stopped; everything acknowledged is in the log\n")
        return (tmp_path / "up.log").read_text()

    def first(url: str, user: str, more: str) -> None:
        told = re.match(r" with the password (\S+) \(shown this once", more)
        assert told is not None, more
        passwords.append(told[1])
        assert user == "admin"
        assert signs_in(url, user, told[1])

    def second(url: str, user: str, more: str) -> None:
        assert passwords[0] not in more
        words = shlex.split(more.partition(" comes from: ")[2])
        assert words[:5] == ["holdmq", "console", "user", "passwd", "admin"]
        passwords.append(json.loads(holdmq(*words[1:], "--json").stdout)["password"])
        assert signs_in(url, user, passwords[1])

    passwords: list[str] = []
    log = started(first)
    assert passwords[0] not in log
    log = started(second)
    assert passwords[1] not in log


def test_who_signs_in_is_an_admin_that_there_is(tmp_path: Path) -> None:
    section = ConsoleSection(data_dir=str(tmp_path / "console"))
    file = AccountFile(tmp_path / "console")
    file.add("ann", "viewer", "a long enough one")
    assert prepare_sign_in(section) == SignIn("ann")
    file.add("zoe", "admin", "a long enough one")
    assert prepare_sign_in(section) == SignIn("zoe")
    file.add("admin", "admin", "a long enough one")
    assert prepare_sign_in(section) == SignIn("admin")
    file.change("admin", disabled=True)
    assert prepare_sign_in(section) == SignIn("zoe")


def test_accounts_that_cannot_be_read_are_the_consoles_to_complain_of(tmp_path: Path) -> None:
    (tmp_path / "console").write_text("no directory")
    assert prepare_sign_in(ConsoleSection(data_dir=str(tmp_path / "console"))) == SignIn("admin")


def test_where_nobody_signs_in_no_account_is_made_and_people_are_told(tmp_path: Path) -> None:
    found = prepare_sign_in(ConsoleSection(auth="none", data_dir=str(tmp_path / "console")))
    assert found.facts(URL) == {"console": URL}
    assert found.sentence(URL, "holdmq-data/console").startswith(f"the console is at {URL}, where nobody has")
    assert not (tmp_path / "console").exists()


def test_programs_are_told_the_first_password_as_well() -> None:
    assert SignIn("admin", "x").facts(URL) == {"console": URL, "user": "admin", "password": "x"}
    said = SignIn("admin").sentence(URL, "holdmq-data/console")
    assert said.endswith("comes from: holdmq console user passwd admin")
