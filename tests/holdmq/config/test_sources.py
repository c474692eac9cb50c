from __future__ import annotations

from pathlib import Path

import pytest

from holdmq.config.model import Config
from holdmq.config.sources import env_name, load, reference
from holdmq.errors import ConfigError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "holdmq.toml"


def test_nothing_given_is_the_defaults() -> None:
    assert load(environ={}) == Config()


def test_flags_go_over_the_environment_over_the_file_over_the_defaults(file: Path) -> None:
    file.write_text("[gateway]\nport = 1\nworkers = 1\n[registry]\nport = 1\n")
    environ = {"HOLDMQ_GATEWAY__PORT": "2", "HOLDMQ_GATEWAY__WORKERS": "2"}
    config = load(file, ["gateway.port=3"], environ)
    assert (config.gateway.port, config.gateway.workers, config.registry.port) == (3, 2, 1)
    sources = [
        config.source_of(key) for key in ("gateway.port", "gateway.workers", "registry.port", "log.level")
    ]
    assert sources == ["--set", "variable HOLDMQ_GATEWAY__WORKERS", str(file), "default"]


def test_the_file_may_be_named_by_a_variable(file: Path) -> None:
    file.write_text('[log]\nlevel = "debug"\n')
    assert load(environ={"HOLDMQ_CONFIG": str(file)}).log.level == "debug"


def test_every_key_can_be_set_by_its_variable_and_by_set() -> None:
    for row in reference():
        if row.default is None:
            continue
        text = ",".join(row.default) if isinstance(row.default, list) else str(row.default)
        by_variable = load(environ={row.env: text})
        assert by_variable.value_of(row.key) == row.default
        assert by_variable.source_of(row.key) == f"variable {row.env}"
        by_flag = load(None, [f"{row.key}={text}"], {})
        assert by_flag.value_of(row.key) == row.default


def test_every_key_has_a_meaning_and_a_unit_when_its_name_ends_in_one() -> None:
    for row in reference():
        assert row.meaning, row.key
        for suffix, unit in (("_ms", "milliseconds"), ("_s", "seconds"), ("_bytes", "bytes")):
            if row.key.endswith(suffix):
                assert row.unit == unit


def test_the_variable_of_a_key_has_two_underscores_between_section_and_key() -> None:
    assert env_name("storage.data_dir") == "HOLDMQ_STORAGE__DATA_DIR"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("[gateway]\nprot = 1\n", r'unknown key "gateway\.prot" in .*toml; did you mean "gateway\.port"\?'),
        ("[gatway]\nport = 1\n", r'unknown section "gatway" in .*; did you mean "gateway"\?'),
        ("[zzz]\n", 'unknown section "zzz" in .*; "holdmq config keys" lists all keys'),
        ("gateway = 1\n", r'"gateway" in .* is a section: write \[gateway\]'),
        ('[gateway]\nport = "1883"\n', r'the value "1883" of "gateway\.port" in .* is wrong: .*integer'),
        ("[gateway]\nport = true\n", r'the value true of "gateway\.port"'),
        ("[gateway]\nport = 70000\n", "less than or equal to 65535"),
        ('[storage]\nflush = "maybe"\n', "'async' or 'sync'"),
        ("[client]\nregistries = [1]\n", r'"client\.registries".*string'),
        ("[gateway\n", "is not valid TOML"),
    ],
)
def test_a_wrong_file_is_refused_by_name(file: Path, content: str, sentence: str) -> None:
    file.write_text(content)
    with pytest.raises(ConfigError, match=sentence):
        load(file, environ={})


def test_a_file_that_cannot_be_read_or_is_no_text_is_refused_by_its_path(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"holdmq\.toml cannot be read: No such file"):
        load(file, environ={})
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        load(file, environ={})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("gateway.prot=1", r'unknown key "gateway\.prot" in --set; did you mean "gateway\.port"\?'),
        ("gateway.port=many", r'the value "many" of "gateway\.port" in --set is wrong'),
        ("gateway.port", "is not of the form section.key=value"),
        ("port=1", "is not of the form section.key=value"),
        ("client.registries=[", "is no JSON array"),
    ],
)
def test_a_wrong_flag_is_refused_by_name(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load(None, [text], {})


def test_a_wrong_variable_is_refused_by_its_own_name() -> None:
    with pytest.raises(ConfigError, match="variable HOLDMQ_GATEWAY__PROT"):
        load(environ={"HOLDMQ_GATEWAY__PROT": "1"})


def test_variables_that_kubernetes_sets_by_itself_are_no_keys() -> None:
    assert (
        load(environ={"HOLDMQ_PORT_1883_TCP": "tcp://10.0.0.1:1883", "HOLDMQ_SERVICE_HOST": "x"}) == Config()
    )


def test_texts_become_lists_booleans_and_unset() -> None:
    config = load(
        None,
        ["client.registries=a:1, b:2", "broker.auto_create_topics=no", "gateway.allow_anonymous="],
        {"HOLDMQ_GATEWAY__ALLOW_ANONYMOUS": "true"},
    )
    assert config.client.registries == ["a:1", "b:2"]
    assert config.broker.auto_create_topics is False
    assert config.gateway.allow_anonymous is None
    assert load(None, ['client.registries=["c:3"]'], {}).client.registries == ["c:3"]


def test_a_value_may_hold_an_equals_sign() -> None:
    assert load(None, ["storage.data_dir=/a=b"], {}).storage.data_dir == "/a=b"
