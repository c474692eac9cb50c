"""Access keys of tenants: nothing of others is reached, whatever the role and the patterns."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdmq.credentials.access_keys import AccessKey, Grants, load_keys
from holdmq.credentials.permissions import NEEDS, Role
from holdmq.errors import Code, ConfigError, RemoteError
from holdmq.wire.codes import RequestCode

SECRET = "s" * 43
ALL = ("*",)
OTHERS = ["orders", "beta%orders", "acme2%orders", "%SESSION", "%RETRY%readers", "%RETRY%beta%g", "%TIMER"]


def of_acme(*roles: Role) -> Grants:
    return Grants(AccessKey("a", SECRET, (), frozenset(roles or (Role.CLIENT,)), ALL, ALL, ALL, "acme"))


def is_allowed(of: Grants, code: RequestCode, **ext: object) -> bool:
    try:
        of.check(code, ext)
    except RemoteError as refused:
        return refused.code != Code.NOT_PERMITTED
    return True


@pytest.mark.parametrize("role", [Role.CLIENT, Role.READER])
@pytest.mark.parametrize("name", OTHERS)
def test_a_tenants_key_reaches_nothing_of_others_with_any_request(role: Role, name: str) -> None:
    of = of_acme(role)
    assert not of.may_produce(name)
    assert not of.may_consume(name)
    assert not of.may_use_group(name)
    assert not of.sees(name)
    for code, needs in NEEDS.items():
        if not needs.by_patterns or needs.by_item:
            continue
        named = [name for name in (needs.topics, *needs.groups) if name]
        for field in named:
            ext: dict[str, object] = dict.fromkeys((f.removesuffix("?") for f in named), "acme%x")
            ext |= {field.removesuffix("?"): name, "by_use": True}
            assert not is_allowed(of, code, **ext), (code.name, field)


def test_what_is_about_the_whole_cluster_takes_a_key_of_no_tenant() -> None:
    free = {code.name for code in RequestCode if is_allowed(of_acme(Role.READER), code)}
    assert free == {
        "HELLO", "HEARTBEAT", "FILTER_SET", "ROUTE_GET", "CLUSTER_GET", "ORDER_GET", "TABLE_UNWATCH",
        "SHARED_PULL", "SHARED_ACK", "SHARED_NACK", "SHARED_EXTEND", "SHARED_CLOSE",
        # By their handlers:
        "PULL", "PULL_COLUMNS", "PRODUCE",
        # Answered with what the key sees:
        "TOPIC_LIST", "GROUP_LIST",
    }  # fmt: skip
    with pytest.raises(RemoteError, match="of no tenant"):
        of_acme(Role.READER).check(RequestCode.MESSAGE_GET, {})


def test_patterns_of_a_tenants_key_are_of_names_within_the_tenant() -> None:
    of = Grants(AccessKey("a", SECRET, (), frozenset({Role.CLIENT}), ("in-*",), ("out",), ("g",), "acme"))
    assert of.may_produce("acme%in-1")
    assert not of.may_produce("acme%out")
    assert of.may_consume("acme%out")
    assert of.may_use_group("acme%g")
    assert of.may_consume("%RETRY%acme%g")
    assert not of.may_consume("%RETRY%acme%h")
    assert is_allowed(of, RequestCode.TOPIC_CREATE, topic="acme%in-2", by_use=True)
    assert not is_allowed(of, RequestCode.TOPIC_CREATE, topic="in-2", by_use=True)
    assert not is_allowed(of, RequestCode.TOPIC_CREATE, topic="acme%in-2")


def test_a_tenants_reader_reads_all_of_the_tenant_and_changes_nothing() -> None:
    of = Grants(AccessKey("a", SECRET, roles=frozenset({Role.READER}), tenant="acme"))
    assert of.may_consume("acme%orders")
    assert of.may_consume("%DLQ%acme%g")
    assert is_allowed(of, RequestCode.MESSAGE_FIND, topic="acme%orders")
    assert is_allowed(of, RequestCode.GROUP_MEMBERS, group="acme%g")
    assert is_allowed(of, RequestCode.OFFSET_GET, group="acme%g")
    assert not is_allowed(of, RequestCode.OFFSET_RESET, group="acme%g")
    assert not is_allowed(of, RequestCode.TABLE_PUT, topic="acme%t")
    assert not of.may_produce("acme%orders")


def test_a_wildcard_of_a_key_without_tenant_reaches_no_tenant() -> None:
    of = Grants(AccessKey("p", SECRET, (), frozenset({Role.CLIENT}), ALL, ("acme%*",), ALL))
    assert of.may_produce("orders")
    assert not of.may_produce("acme%orders")
    assert not of.may_use_group("acme%g")
    assert of.may_consume("acme%orders")
    assert not of.may_consume("beta%orders")
    assert not of.may_consume("orders")
    assert of.sees("orders")
    assert of.sees("acme%orders")
    assert not of.sees("beta%orders")


def test_roles_above_tenants_see_and_read_all() -> None:
    for role in (Role.READER, Role.SERVICE, Role.ADMIN):
        of = Grants(AccessKey("r", SECRET, roles=frozenset({role})))
        assert of.sees("acme%orders")
        assert of.may_consume("acme%orders")


@pytest.mark.parametrize(
    ("entry", "fault"),
    [
        ("tenant = 'a b'", "tenant name 'a b'"),
        ("tenant = 7", "tenant is a text"),
        ("tenant = 'acme'\nroles = ['admin']", "client or reader"),
        ("tenant = 'acme'\nroles = ['reader', 'service']", "client or reader"),
        ("tenant = 'acme'\nproduce = ['acme%orders']", "as 'orders'"),
    ],
)
def test_an_entry_that_is_no_tenants_is_named(tmp_path: Path, entry: str, fault: str) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(f"[keys.a]\nsecret = '{SECRET}'\n{entry}\n", encoding="utf-8")
    path.chmod(0o600)
    with pytest.raises(ConfigError, match=fault):
        load_keys(path)
