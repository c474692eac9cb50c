"""Mounts: what tenants' clients say, and what it is called here."""

from __future__ import annotations

import pytest

from gateway.ground import mounts
from gateway.ground.entries import TopicEntry, make_entry
from gateway.ground.mounts import TenantMounts, mounted_filter, said_topic, within_mount
from gateway.ground.routes import Route, Routes
from holdmq.mqtt import MqttError, ReasonCode


def entry_of(raw: bytes, mount: str) -> TopicEntry:
    return make_entry(
        raw, 100, 8, Routes([Route("#", "mqtt-tree-all"), Route("$%acme/#", "mqtt-tree-x")]), mount
    )


@pytest.mark.parametrize(
    ("said", "mounted"),
    [
        ("a/b", "$%acme/a/b"),
        ("#", "$%acme/#"),
        ("/x", "$%acme//x"),
        ("$share/g/a/#", "$share/g/$%acme/a/#"),
        ("$share/g//a", "$share/g/$%acme//a"),
    ],
)
def test_a_filter_is_mounted_and_the_share_s_name_stays_in_front(said: str, mounted: str) -> None:
    assert mounted_filter("$%acme/", said) == mounted


def test_what_packets_say() -> None:
    assert said_topic(b"$%acme/a/b") == b"a/b"
    assert said_topic(b"$%acme//b") == b"/b"
    assert said_topic(b"a/b") == b"a/b"
    assert said_topic(b"$SYS/a") == b"$SYS/a"


def test_what_a_client_may_name_of_filters() -> None:
    acme = TenantMounts(entry_of).of("acme")
    assert within_mount(acme, "$%acme/a/#") == "a/#"
    for other in (
        "a/#",
        "#",
        "$%beta/a",
        "$%acmes/a",
        "$%acme/$SYS/#",
        "$%acme/$%beta/x",
        "$%acme/",
        "$SYS/x",
    ):
        assert within_mount(acme, other) is None
    assert within_mount(None, "a/#") == "a/#"
    assert within_mount(None, "$SYS/#") == "$SYS/#"
    for tenants in ("$%acme/a", "$%acme", "$%"):
        assert within_mount(None, tenants) is None


def test_the_same_name_is_another_entry_for_each_tenant_and_for_nobody() -> None:
    known = TenantMounts(entry_of)
    acme, beta = known.of("acme"), known.of("beta")
    entries = [table.admit(b"a/b") for table in (known.topics, acme.topics, beta.topics)]
    assert [entry.mqtt_topic for entry in entries] == ["a/b", "$%acme/a/b", "$%beta/a/b"]
    # Rules are about nobody's topics.
    assert [entry.own for entry in entries] == [
        ("mqtt-tree-all", "a/b"), ("acme%a", "b"), ("beta%a", "b"),
    ]  # fmt: skip
    assert [entry.said for entry in entries] == ["a/b"] * 3
    assert acme.topics.admit(b"$delayed/5/a/b").mqtt_topic == "$%acme/a/b"
    assert known.of("acme") is acme
    assert known.of("acme", is_of_file=True) is not acme


def test_no_name_of_a_client_means_another_tenants_entry() -> None:
    known = TenantMounts(entry_of)
    known.of("acme").topics.admit(b"a/b")
    for table in (known.topics, known.of("acme").topics, known.of("beta").topics):
        for raw in (b"$%acme/a/b", b"$SYS/a", b"$delayed/5/$%acme/a/b"):
            assert table.admit(raw).refusal == ReasonCode.TOPIC_NAME_INVALID
    with pytest.raises(MqttError):
        known.topics.admit(b"\0acme/a")


def test_the_entry_of_a_will_s_topic_is_its_tenants() -> None:
    known = TenantMounts(entry_of)
    assert known.entry("$%acme/a/b") is known.of("acme").topics.admit(b"a/b")
    assert known.entry("a/b") is known.topics.admit(b"a/b")
    assert known.entry("$%acme/$x/b").refusal


def test_the_topics_of_all_tenants_have_one_bound() -> None:
    known = TenantMounts(entry_of, topics_max=10)
    for tenant in ("acme", "beta", "gamma"):
        for number in range(9):
            known.of(tenant).topics.admit(b"t/%d" % number)
        assert sum(len(known.of(name).topics) for name in ("acme", "beta", "gamma")) <= 10


def test_mounts_of_ever_new_tenants_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts, "MOUNTS_MAX", 3)
    known = TenantMounts(entry_of)
    first = known.of("t0")
    for number in range(1, 4):
        known.of(f"t{number}")
    assert known.of("t0") is not first
    assert first.topics.admit(b"a").mqtt_topic == "$%t0/a", "who is connected keeps his"
