from __future__ import annotations

from pathlib import Path

import pytest

from holdmq.config.changes import READ, RELOADED, Adjustment, LiveSettings, differences, with_values
from holdmq.config.model import Config
from holdmq.config.sources import load, load_again, reference


def live(config: Config, seen: list[Config]) -> LiveSettings:
    return LiveSettings("registry", config, [Adjustment(RELOADED["registry"], seen.append)])


def test_every_key_that_is_reloaded_is_one_that_the_service_reads() -> None:
    known = {row.key: row for row in reference()}
    for service, keys in RELOADED.items():
        assert keys <= known.keys()
        assert {key.partition(".")[0] for key in keys} <= READ[service]
        assert {known[key].change for key in keys} == {"reload"}
    assert known["broker.port"].change == "restart"


def test_what_can_change_is_applied_and_what_cannot_waits() -> None:
    seen: list[Config] = []
    settings = live(Config(), seen)
    read = load(None, ["registry.scan_interval_s=3", "registry.port=1", "gateway.port=2"], {})
    assert settings.take_over(read) == (["registry.scan_interval_s"], ["registry.port"])
    assert [config.registry.scan_interval_s for config in seen] == [3]
    assert settings.in_force.registry.port == Config().registry.port
    assert settings.take_over(read) == ([], ["registry.port"]), "it still waits, and nothing is applied twice"
    assert len(seen) == 1
    assert settings.take_over(Config()) == (["registry.scan_interval_s"], [])


def test_a_table_that_forgets_a_key_is_refused() -> None:
    with pytest.raises(TypeError, match=r"registry\.broker_expiry_s"):
        LiveSettings("registry", Config(), [Adjustment.of("registry", "scan_interval_s", print)])


def test_keys_of_sections_within_sections_differ_by_their_whole_name() -> None:
    other = load(None, ["storage.kv.prefix=other"], {})
    assert differences("broker", Config(), other) == ["storage.kv.prefix"]


def test_the_sources_are_those_of_the_start(tmp_path: Path) -> None:
    file = tmp_path / "holdmq.toml"
    file.write_text("[registry]\nscan_interval_s = 7\nbroker_expiry_s = 8\n")
    config = load(file, ["registry.broker_expiry_s=9"], {})
    file.write_text("[registry]\nscan_interval_s = 70\nbroker_expiry_s = 80\n")
    again = load_again(with_values(config, {"registry.scan_interval_s": 1}), {})
    assert (again.registry.scan_interval_s, again.registry.broker_expiry_s) == (70, 9)
