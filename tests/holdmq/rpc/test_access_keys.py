"""The keys file, and what its entries allow."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdmq.credentials.access_keys import REMEMBERED_MAX, AccessKey, Grants, load_keys
from holdmq.credentials.permissions import Role
from holdmq.errors import Code, ConfigError, RemoteError
from holdmq.wire.codes import RequestCode

SECRET = "s" * 43


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    return path


def grants(*roles: Role, **patterns: tuple[str, ...]) -> Grants:
    return Grants(AccessKey("orders", SECRET, roles=frozenset(roles or (Role.CLIENT,)), **patterns))


def refusal(of: Grants, code: RequestCode, **ext: object) -> str:
    with pytest.raises(RemoteError) as caught:
        of.check(code, ext)
    assert caught.value.code == Code.NOT_PERMITTED
    return str(caught.value)


def test_a_file_gives_its_entries(tmp_path: Path) -> None:
    text = f"""
        [keys.orders]
        secret = "{SECRET}"
        produce = ["orders", "events-*"]
        consume = ["orders"]
        groups = ["orders-*"]
        [keys."gateway.1"]
        certificates = ["gateway-1"]
        roles = ["service"]
    """
    keys = load_keys(write(tmp_path / "keys.toml", text))
    assert keys["orders"] == AccessKey(
        "orders", SECRET, (), frozenset({Role.CLIENT}), ("orders", "events-*"), ("orders",), ("orders-*",)
    )
    assert keys["gateway.1"].roles == {Role.SERVICE}
    assert SECRET not in repr(keys)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[keys.a]\nsecret = 'short'", "32 characters"),
        ("[keys.a]\nsecret = 7", "32 characters"),
        ("[keys.a]\nproduce = ['x']", "neither a secret nor certificates"),
        (f"[keys.a]\nsecret = '{SECRET}'\nproduces = ['x']", "unknown field 'produces'"),
        (f"[keys.a]\nsecret = '{SECRET}'\nproduce = 'x'", "produce is a list of texts"),
        (f"[keys.a]\nsecret = '{SECRET}'\nroles = ['root']", "'root' is no role"),
        ("[key.a]\nsecret = 'x'", "'key' is not expected"),
        ("keys = 7", "tables"),
        ("[keys]\na = 7", "is a table"),
        ("[keys.a]\ncertificates = ['c']\n[keys.b]\ncertificates = ['c']", "both 'a' and 'b'"),
        ("[keys", "not valid TOML"),
    ],
)
def test_a_wrong_entry_is_named_and_its_secret_is_not(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        load_keys(write(tmp_path / "keys.toml", text))
    assert SECRET not in str(caught.value)
    assert str(tmp_path / "keys.toml") in str(caught.value)


@pytest.mark.parametrize("mode", [0o644, 0o606, 0o660, 0o601])
def test_a_file_that_others_can_read_or_change_is_refused(tmp_path: Path, mode: int) -> None:
    path = write(tmp_path / "keys.toml", f"[keys.a]\nsecret = '{SECRET}'", mode)
    with pytest.raises(ConfigError, match="chmod 600"):
        load_keys(path)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_keys(tmp_path / "keys.toml")


def test_patterns_decide_on_topics_and_groups() -> None:
    of = grants(produce=("events-*",), consume=("orders",), groups=("g?",))
    assert of.may_produce("events-1")
    assert not of.may_produce("orders")
    assert of.may_consume("orders")
    assert not of.may_consume("events-1")
    assert of.may_use_group("g1")
    assert not of.may_use_group("g10")


def test_no_pattern_matches_a_system_topic_but_a_groups_own() -> None:
    of = grants(produce=("*",), consume=("*",), groups=("mine",))
    assert not of.may_produce("%TIMER")
    assert not of.may_consume("%TIMER")
    assert of.may_consume("%RETRY%mine")
    assert of.may_consume("%DLQ%mine")
    assert not of.may_consume("%RETRY%other")
    assert not of.may_produce("%RETRY%mine")


def test_services_and_admins_use_every_topic() -> None:
    for role in (Role.SERVICE, Role.ADMIN):
        of = grants(role)
        assert of.may_produce("t")
        of.check(RequestCode.OFFSET_GET, {"group": "any"})
        of.check(RequestCode.READ_OPEN, {})


def test_a_reader_reads_every_topic_and_changes_none() -> None:
    of = grants(Role.READER)
    assert of.may_consume("t")
    assert of.may_consume("%DLQ%any")
    assert not of.may_produce("t")
    assert not of.may_use_group("g")
    of.check(RequestCode.PULL, {})
    of.check(RequestCode.PULL_COLUMNS, {})
    of.check(RequestCode.OFFSET_GET, {"group": "any"})
    assert "may not use group 'g'" in refusal(of, RequestCode.PULL, group="g")
    assert "may not use group 'g'" in refusal(of, RequestCode.OFFSET_REPORT, group="g")
    assert "may not use group 'g'" in refusal(of, RequestCode.OFFSET_RESET, group="g")
    assert "may not use group 'g'" in refusal(of, RequestCode.DLQ_PURGE, group="g")
    assert "may not produce to topic 't'" in refusal(of, RequestCode.TABLE_PUT, topic="t")
    assert "may not produce to" in refusal(of, RequestCode.TOPIC_CREATE, topic="t", by_use=True)


def test_a_reader_writes_what_its_patterns_name() -> None:
    of = grants(Role.READER, produce=("results",), groups=("mine",))
    assert of.may_produce("results")
    assert not of.may_produce("orders")
    of.check(RequestCode.TOPIC_CREATE, {"topic": "results", "by_use": True})
    of.check(RequestCode.PULL, {"group": "mine"})


def test_a_gateway_uses_no_group_and_registers_no_broker() -> None:
    of = grants(Role.SERVICE)
    assert "may not use group 'g'" in refusal(of, RequestCode.OFFSET_RESET, group="g")
    assert "role broker or admin" in refusal(of, RequestCode.BROKER_REGISTER)
    both = grants(Role.SERVICE, Role.BROKER)
    both.check(RequestCode.BROKER_REGISTER, {})
    both.check(RequestCode.SESSION_OPEN, {})


def test_a_broker_registers_itself_and_reads_nothing() -> None:
    of = grants(Role.BROKER)
    of.check(RequestCode.BROKER_REGISTER, {})
    assert not of.may_consume("t")
    assert not of.may_produce("t")
    assert "role reader, service or admin" in refusal(of, RequestCode.READ_OPEN)


def test_only_an_admin_changes_settings() -> None:
    grants(Role.ADMIN).check(RequestCode.TOPIC_DELETE, {"topic": "t"})
    assert "role admin" in refusal(grants(Role.SERVICE), RequestCode.TOPIC_DELETE, topic="t")
    assert "role admin" in refusal(grants(produce=("*",)), RequestCode.TOPIC_DELETE, topic="t")


def test_a_refusal_names_key_action_and_resource() -> None:
    of = grants(consume=("orders",), groups=("g",))
    text = refusal(of, RequestCode.QUEUE_BOUNDS, topics=["orders", "billing"])
    assert "'orders' may not consume from topic 'billing'" in text
    text = refusal(of, RequestCode.GROUP_JOIN, group="h", subscriptions=[])
    assert "'orders' may not use group 'h'" in text
    assert SECRET not in text


def test_every_subscription_of_a_member_is_looked_at() -> None:
    of = grants(consume=("orders",), groups=("g",))
    of.check(RequestCode.GROUP_JOIN, {"group": "g", "subscriptions": [["orders", "*"]]})
    text = refusal(of, RequestCode.GROUP_JOIN, group="g", subscriptions=[["orders", "*"], ["billing", "*"]])
    assert "billing" in text


def test_a_client_must_name_what_it_asks_about() -> None:
    of = grants(groups=("*",))
    assert "without a group" in refusal(of, RequestCode.SHARED_STATE, group="")
    assert "without a group" in refusal(of, RequestCode.DLQ_LIST)
    grants(Role.SERVICE).check(RequestCode.DLQ_LIST, {})


def test_both_groups_of_a_clone_are_looked_at() -> None:
    of = grants(groups=("mine-*",))
    of.check(RequestCode.OFFSET_CLONE, {"source": "mine-1", "target": "mine-2"})
    assert "theirs" in refusal(of, RequestCode.OFFSET_CLONE, source="mine-1", target="theirs")
    assert "theirs" in refusal(of, RequestCode.OFFSET_CLONE, source="theirs", target="mine-1")


def test_a_client_creates_by_use_what_it_may_use() -> None:
    of = grants(produce=("events-*",))
    of.check(RequestCode.TOPIC_CREATE, {"topic": "events-1", "by_use": True})
    grants(Role.SERVICE).check(RequestCode.TOPIC_CREATE, {"topic": "x", "by_use": True})
    refusal(of, RequestCode.TOPIC_CREATE, topic="other", by_use=True)
    refusal(of, RequestCode.TOPIC_CREATE, topic="events-1", by_use=False)
    refusal(of, RequestCode.TOPIC_CREATE, topic="events-1", by_use=1)


def test_a_code_that_nobody_knows_is_refused() -> None:
    with pytest.raises(RemoteError, match="does not know it"):
        grants(Role.ADMIN).check(9999, {})


def test_what_is_remembered_is_bounded_and_stays_right() -> None:
    of = grants(produce=("t1*",), consume=("*",))
    for i in range(REMEMBERED_MAX + 100):
        assert of.may_produce(f"t{i}") == str(i).startswith("1")
        assert len(of._produce) <= REMEMBERED_MAX
    assert of.may_produce("t1")
