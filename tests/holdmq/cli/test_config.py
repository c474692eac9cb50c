from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from holdmq.config.sources import load, reference, table_reference


def test_keys_prints_every_key_as_a_table_and_as_json(holdmq: Any) -> None:
    rows = json.loads(holdmq("config", "keys", "--json").stdout)
    known = [*reference(), *table_reference()]
    assert [row["key"] for row in rows] == [row.key for row in known]
    assert "gateway.listeners[].ws_path" in {row.key for row in known}
    table = holdmq("config", "keys").stdout
    for row in known:
        assert row.key in table
        assert row.meaning
        assert row.env in table


def test_show_is_a_file_that_gives_the_same_configuration_again(holdmq_process: Any, tmp_path: Path) -> None:
    listeners = '[{"name":"w","kind":"ws","port":8083,"ws_origins":["https://a.example"]}]'
    environ = {"HOLDMQ_CLIENT__REGISTRIES": "a:1,b:2", "HOLDMQ_GATEWAY__LISTENERS": listeners}
    shown = holdmq_process("config", "show", "--set", "gateway.port=1884", **environ).stdout
    file = tmp_path / "again.toml"
    file.write_text(shown)
    assert tomllib.loads(shown)["client"]["registries"] == ["a:1", "b:2"]
    assert "port = 1884  # --set" in shown
    again = load(file, environ={}).model_dump()
    sets = ["gateway.port=1884", "client.registries=a:1,b:2", f"gateway.listeners={listeners}"]
    assert again == load(None, sets, {}).model_dump()


def test_show_as_json_names_the_source_of_every_value(holdmq: Any) -> None:
    local = {"name": "local", "kind": "unix", "path": "/run/mqtt.sock"}
    sets = ("--set", "gateway.port=1884", "--set", f"gateway.listeners={json.dumps([local])}")
    shown = json.loads(holdmq("config", "show", "--json", *sets).stdout)
    assert shown["gateway.port"] == {"value": 1884, "source": "--set"}
    assert shown["gateway.bind"]["source"] == "default"
    assert shown["gateway.listeners"] == {"value": [local], "source": "--set"}


def test_check_accepts_what_the_services_would(holdmq: Any, tmp_path: Path) -> None:
    file = tmp_path / "holdmq.toml"
    file.write_text("[gateway]\nport = 1884\n")
    done = holdmq("config", "check", "--config", str(file), "--json")
    assert (done.returncode, json.loads(done.stdout)) == (0, {"ok": True, "set": ["gateway.port"]})
    assert holdmq("config", "check").stdout.startswith("the configuration is valid")


def test_check_refuses_a_gateway_that_is_open_by_accident(holdmq: Any) -> None:
    done = holdmq("config", "check", "--set", "gateway.bind=0.0.0.0")
    assert done.returncode == 2
    assert done.stderr.startswith("error: gateway.bind is 0.0.0.0, which other machines can reach")


def test_a_secret_is_never_shown(holdmq: Any, tmp_path: Path) -> None:
    given = ("--set", "client.secret=do-not-tell", "--set", "client.access_key=a")
    for arguments in (("show",), ("show", "--json"), ("check",), ("keys",)):
        done = holdmq("config", *arguments, *(given if arguments != ("keys",) else ()))
        assert done.returncode == 0, done.stderr
        assert "do-not-tell" not in done.stdout + done.stderr
    file = tmp_path / "holdmq.toml"
    file.write_text("[client]\nsecret = 12345678\n")
    refused = holdmq("config", "check", "--config", str(file))
    assert refused.returncode == 2
    assert "client.secret" in refused.stderr
    assert "12345678" not in refused.stderr


def test_check_refuses_a_broker_that_is_open_by_accident(holdmq: Any) -> None:
    done = holdmq("config", "check", "--set", "broker.bind=0.0.0.0")
    assert done.returncode == 2
    assert done.stderr.startswith("error: broker.bind is 0.0.0.0, which other machines can reach")
