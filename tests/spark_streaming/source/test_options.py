from __future__ import annotations

import pickle

import pytest

from holdmq.errors import ConfigError
from holdmq.rpc.security import Security
from spark_streaming.source.columns import COLUMNS
from spark_streaming.source.options import OPTIONS, parse_options, parse_write_options


def test_the_defaults_read_every_topic_of_this_machine_from_its_first_record() -> None:
    options = parse_options({})
    assert options.registries == ("127.0.0.1:9876",)
    assert options.columns == tuple(COLUMNS)
    assert options.fail_on_data_loss
    assert not options.starting_latest
    assert options.is_wanted("devices")


@pytest.mark.parametrize("topics", ["*", "%*,*", "[%]*,*"])
def test_system_topics_are_never_read(topics: str) -> None:
    if topics.startswith("%"):
        with pytest.raises(ConfigError, match="system topic"):
            parse_options({"topics": topics})
        return
    assert not parse_options({"topics": topics}).is_wanted("%RETRY%group")


def test_topics_are_names_or_patterns() -> None:
    options = parse_options({"Topics": "devices, cmd-*"})
    assert [t for t in ("devices", "devices2", "cmd-1", "Cmd-1") if options.is_wanted(t)] == [
        "devices",
        "cmd-1",
    ]


def test_starting_offsets_are_a_word_or_json() -> None:
    assert parse_options({"starting_offsets": "LATEST"}).starting_latest
    assert parse_options({"starting_offsets": '{"b/t/0": 4}'}).starting == {"b/t/0": 4}


def test_a_position_is_a_time_with_its_zone() -> None:
    for text in ("2023-11-14T22:13:20.123Z", "2023-11-14T23:13:20.123+01:00", "2023-11-14T22:13:20.1229Z"):
        options = parse_options({"starting_offsets": text, "ending_offsets": text})
        assert (options.starting_ms, options.ending_ms) == (1_700_000_000_123, 1_700_000_000_123)
        assert (options.starting, options.ending, options.starting_latest) == (None, None, False)
    with pytest.raises(ConfigError, match="a time needs its zone"):
        parse_options({"starting_offsets": "2023-11-14T22:13:20"})


def test_the_least_tasks_are_never_more_than_the_most() -> None:
    with pytest.raises(ConfigError, match="min_partitions = 5 is above max_partitions = 4"):
        parse_options({"min_partitions": "5", "max_partitions": "4"})
    options = parse_options({"min_partitions": "500"})
    assert (options.min_partitions, options.max_partitions) == (500, 500)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("registry", "nowhere"),
        ("registry", ""),
        ("topics", " , "),
        ("starting_offsets", "yesterday"),
        ("starting_offsets", '{"b/t": 4}'),
        ("ending_offsets", "earliest"),
        ("ending_offsets", "2023-11-14T22:13:20"),
        ("min_partitions", "0"),
        ("max_records_per_batch", "0"),
        ("max_partitions", "-1"),
        ("fail_on_data_loss", "maybe"),
        ("columns", "topic,size"),
        ("columns", "topic,topic"),
        ("read_timeout_ms", "5s"),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_of_its_option(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"option {name} = ") as caught:
        parse_options({name: value})
    assert OPTIONS[name].meaning in str(caught.value)


def test_an_unknown_option_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="unknown option 'topic'; there are registry, cluster, tenant, t"):
        parse_options({"topic": "devices"})


def test_options_travel_to_workers() -> None:
    options = parse_options({"tags": "1/temp,2/temp", "starting_offsets": '{"b/t/0": 4}'})
    assert pickle.loads(pickle.dumps(options)) == options


def test_credentials_and_tls_are_options_but_no_secret_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_options({}).security is None
    monkeypatch.setenv("HOLDMQ_CLIENT__SECRET", "s" * 40)
    assert parse_options({}).security is None, "a secret without a key is somebody else's"
    security = parse_options({"access_key": "stats", "tls_ca": "ca.pem"}).security
    assert security == Security("stats", "s" * 40, tls_ca="ca.pem")
    assert "s" * 40 not in repr(security)
    assert parse_options({"access_key": "stats", "secret_file": "f"}).security == Security(
        "stats", secret_file="f"
    )
    with pytest.raises(ConfigError, match="unknown option 'secret'"):
        parse_options({"secret": "s" * 40})
    monkeypatch.delenv("HOLDMQ_CLIENT__SECRET")
    with pytest.raises(ConfigError, match=r"client\.secret or client\.secret_file is not set"):
        parse_options({"access_key": "stats"})


def test_a_tenant_is_a_name_and_by_default_nobody() -> None:
    assert (parse_options({}).tenant, parse_write_options({}).tenant) == ("", "")
    for parse in (parse_options, parse_write_options):
        assert parse({"tenant": " acme "}).tenant == "acme"
        with pytest.raises(ConfigError, match="option tenant = 'a b' is no tenant: tenant name"):
            parse({"tenant": "a b"})


def test_a_cluster_is_a_name_and_by_default_all_of_them() -> None:
    assert (parse_options({}).cluster, parse_write_options({}).cluster) == ("", "")
    for parse in (parse_options, parse_write_options):
        assert parse({"cluster": " plant "}).cluster == "plant"
        with pytest.raises(ConfigError, match="option cluster = 'a b' is no cluster: cluster name"):
            parse({"cluster": "a b"})
