from __future__ import annotations

import pytest

from holdmq.service.host_rule import AllowedHosts, host_name_of, is_host_name, split_target

HOSTS = AllowedHosts(["console.example.org", "*.gateways.example.org", "Broker_0.Broker.", "*.local"])


@pytest.mark.parametrize(
    "authority",
    [
        "127.0.0.1",
        "10.1.2.3:8080",
        "[::1]",
        "[2001:db8::1]:8080",
        "[::ffff:10.0.0.1]:1",
        "[fe80::1%eth0]:80",
        "localhost",
        "LocalHost.:8080",
        "localhost:",
        "console.example.org",
        "CONSOLE.Example.ORG.:443",
        "gw-1.gateways.example.org",
        "broker_0.broker:10913",
    ],
)
def test_addresses_localhost_and_names_that_were_given_are_this_server(authority: str) -> None:
    assert HOSTS.allows(authority)


@pytest.mark.parametrize(
    "authority",
    [
        "",
        ".",
        ":80",
        "evil.example",
        "evil.example:8080",
        "localhost.evil.example",
        "evil.localhost",
        "127.0.0.1.evil.example",
        # Other ways to write an address are names for a resolver.
        "127.1",
        "2130706433",
        "0x7f.0.0.1",
        "0177.0.0.1",
        "127.0.0.1.",
        "256.0.0.1",
        "::1",
        "[::1",
        "[]",
        "[::1]x",
        "[evil.example]",
        "[1:2]",
        "[127.0.0.1]",
        # One label, as in certificates; neither none nor two.
        "gateways.example.org",
        ".gateways.example.org",
        "a.b.gateways.example.org",
        "*.gateways.example.org:x",
        "xconsole.example.org",
        "console.example.org..",
        "console.example.org.evil.example",
        "console.example.org@evil.example",
        "evil.example@127.0.0.1",
        "127.0.0.1 evil.example",
        "127.0.0.1,evil.example",
        "127.0.0.1/evil",
        "127.0.0.1:80:80",
        "127.0.0.1:-1",
        "127.0.0.1\r\n evil.example",
        "127.0.0.1\n",
        "localhost\0",
        "\u0661\u0662\u0667.0.0.1",
        "\u212aonsole.example.org",
        "console.example.org\u3002",
        "a" * 300,
    ],
)
def test_whatever_else_there_is_is_not_this_server(authority: str) -> None:
    assert not HOSTS.allows(authority)


def test_without_names_there_are_only_addresses_and_localhost() -> None:
    bare = AllowedHosts()
    assert bare.allows("localhost:1")
    assert bare.allows("[::1]")
    assert not bare.allows("console.example.org")
    assert not AllowedHosts(["*", "*."]).allows("evil.example")


@pytest.mark.parametrize(
    ("target", "hosts", "is_http_1_0", "status", "part"),
    [
        ("/a?b", ["127.0.0.1:1"], False, None, ""),
        ("/a", ["\t localhost "], False, None, ""),
        ("*", ["localhost"], False, None, ""),
        ("http://localhost:8080/a", ["127.0.0.1"], False, None, ""),
        ("/a", ["evil.example:1"], False, 421, "security.hosts"),
        ("/a", [""], False, 421, "security.hosts"),
        ("/a", ["evil.example"], True, 421, "'evil.example'"),
        ("/a", ["\u20ac" * 500], False, 421, "no name of this server"),
        ("http://evil.example/a", ["localhost"], False, 421, "'evil.example'"),
        ("HTTPS://evil.example", ["localhost"], False, 421, "'evil.example'"),
        ("http://localhost/a", ["evil.example"], False, 421, "'evil.example'"),
        ("http://evil.example/a", [], True, 421, "'evil.example'"),
        ("http://127.0.0.1@evil.example/", ["localhost"], False, 421, "evil.example"),
        ("http://evil.example?://127.0.0.1/", ["localhost"], False, 421, "'evil.example'"),
        ("http:///a", ["localhost"], False, 421, "''"),
        ("/a", [], False, 400, "must be a Host"),
        ("/a", [], True, None, ""),
        ("/a", ["localhost", "localhost"], False, 400, "one Host"),
        ("/a", ["localhost", "evil.example"], True, 400, "one Host"),
        ("evil.example:443", ["localhost"], False, 400, "neither a path"),
        ("file://localhost/a", ["localhost"], False, 400, "neither a path"),
        ("a", ["localhost"], False, 400, "neither a path"),
        ("", ["localhost"], False, 400, "neither a path"),
    ],
)
def test_a_request_needs_one_host_and_every_name_in_it_must_be_ours(
    target: str, hosts: list[str], is_http_1_0: bool, status: int | None, part: str
) -> None:
    refusal = HOSTS.refusal(target, hosts, is_http_1_0=is_http_1_0)
    if status is None:
        assert refusal is None
        return
    assert refusal is not None
    assert refusal.status == status
    assert part in refusal.sentence
    assert refusal.sentence.isascii()
    assert len(refusal.sentence) < 1000


@pytest.mark.parametrize(
    ("target", "authority", "path"),
    [
        ("/a?b=http://c", None, "/a?b=http://c"),
        ("//evil.example/a", None, "//evil.example/a"),
        ("http://h:1", "h:1", "/"),
        ("wss://h/mqtt?x", "h", "/mqtt?x"),
        ("http://h?x=/y", "h", "/?x=/y"),
    ],
)
def test_a_target_is_a_path_behind_the_authority_it_may_have(
    target: str, authority: str | None, path: str
) -> None:
    assert split_target(target) == (authority, path)


def test_names_of_the_configuration_are_told_from_what_is_none() -> None:
    for name in ("a", "holdmq-registry", "Gw.Example.org.", "*.gateways.example", "xn--mnchen-3ya.example"):
        assert is_host_name(name), name
    for name in (
        "",
        "*",
        "*.org",
        "a.*.org",
        "a:80",
        "http://a",
        "a b",
        "-a",
        "a..b",
        "m\u00fcnchen.de",
        "::1",
    ):
        assert not is_host_name(name), name
    assert is_host_name(".".join(["a" * 62] * 4))
    assert not is_host_name(".".join(["a" * 63] * 4))


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("https://Console.example.org:444", "console.example.org"),
        ("broker-0.broker:10911", "broker-0.broker"),
        ("localhost", "localhost"),
        ("[::1]:9876", "::1"),
        ("", None),
        ("[", None),
    ],
)
def test_the_name_in_a_place_is_found(place: str, name: str | None) -> None:
    assert host_name_of(place) == name
