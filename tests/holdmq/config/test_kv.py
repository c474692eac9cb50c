from __future__ import annotations

from pathlib import Path

import pytest

from holdmq.config.kv import KvSection, KvServers, kv_servers
from holdmq.config.sources import load
from holdmq.errors import ConfigError


@pytest.mark.parametrize(
    ("url", "servers"),
    [
        ("redis://h", KvServers((("h", 6379),), "", "", False)),
        ("redis://h:1/", KvServers((("h", 1),), "", "", False)),
        ("rediss://u:p%40ss@a:1,b/0", KvServers((("a", 1), ("b", 6379)), "u", "p@ss", True)),
        ("redis://:p@[::1]:7,[fe80::1]", KvServers((("::1", 7), ("fe80::1", 6379)), "", "p", False)),
        ("redis://u:a@b@h", KvServers((("h", 6379),), "u", "a@b", False)),
    ],
)
def test_an_address_names_servers_credentials_and_tls(url: str, servers: KvServers) -> None:
    assert kv_servers(url) == servers
    for ours, theirs in (("redis", "valkey"), ("rediss", "valkeys")):
        if url.startswith(f"{ours}:"):
            assert kv_servers(url.replace(ours, theirs, 1)) == servers


def test_where_the_servers_are_is_told_without_the_password() -> None:
    assert kv_servers("redis://u:hush@a:1,[::1]:2/").where == "a:1, [::1]:2"


@pytest.mark.parametrize(
    "url",
    [
        "h:6379",
        "http://u:hush@h",
        "redis://",
        "redis://u:hush@",
        "redis://u:hush@h,",
        "redis://u:hush@h:port",
        "redis://u:hush@h:0",
        "redis://u:hush@h:65536",
        "redis://u:hush@::1",
        "redis://u:hush@h/1",
        "redis://u:hush@h/?timeout=1",
    ],
)
def test_a_wrong_address_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ConfigError, match=r'of "storage.kv.url" in --set is wrong') as refused:
        load(None, [f"storage.kv.url={url}"], {})
    assert "hush" not in str(refused.value)


def test_a_section_within_a_section_is_set_from_each_source(tmp_path: Path) -> None:
    file = tmp_path / "holdmq.toml"
    file.write_text('[storage]\nengine = "kv"\n[storage.kv]\nprefix = "of-file"\nlease_ms = 1000\n')
    environ = {"HOLDMQ_STORAGE__KV__LEASE_MS": "2000", "HOLDMQ_STORAGE__KV__MIN_REPLICAS": "2"}
    config = load(file, ["storage.kv.min_replicas=3"], environ)
    kv = config.storage.kv
    assert (config.storage.engine, kv.prefix, kv.lease_ms, kv.min_replicas) == ("kv", "of-file", 2000, 3)
    assert config.source_of("storage.kv.lease_ms") == "variable HOLDMQ_STORAGE__KV__LEASE_MS"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("[storage]\nkv = 1\n", r'"storage.kv" in .* is a section: write \[storage.kv\]'),
        ("[storage.kv]\nurk = 1\n", r'unknown key "storage.kv.urk" in .*; did you mean "storage.kv.url"\?'),
        ("[storage.kv]\nlease_ms = 999\n", r'value 999 of "storage.kv.lease_ms"'),
        ('[storage.kv]\nprefix = "{a}"\n', r'"storage.kv.prefix" in .* is wrong'),
        ('[storage.kv]\nurl = "redis://h"\nca_file = "ca.pem"\n', r'"storage.kv.ca_file".*rediss://'),
    ],
)
def test_a_wrong_section_within_a_section_is_refused_by_name(
    tmp_path: Path, content: str, sentence: str
) -> None:
    file = tmp_path / "holdmq.toml"
    file.write_text(content)
    with pytest.raises(ConfigError, match=sentence):
        load(file, environ={})


def test_without_an_address_servers_are_asked_for_by_the_key() -> None:
    with pytest.raises(ConfigError, match=r"storage.kv.url does not say where"):
        KvSection().servers()
    assert load(None, ["storage.kv.url=redis://h"], {}).storage.kv.servers().hosts == (("h", 6379),)
