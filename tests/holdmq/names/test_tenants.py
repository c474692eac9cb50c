from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdmq.errors import UsageError
from holdmq.names.tenants import (
    TENANT_BYTES_MAX,
    Mounted,
    check_tenant,
    in_tenant,
    mount_of,
    split_mount,
    tenant_of,
    within,
)
from holdmq.names.topics import (
    OTHER_TOPIC,
    TOPIC_BYTES_MAX,
    TopicTag,
    filter_terms,
    group_fault,
    is_system_topic,
    is_whole,
    join_mqtt_topic,
    level_of_topic,
    other_topic,
    split_mqtt_topic,
    tag_filter_term,
    tag_term,
    topic_fault,
    topic_of_filter,
)
from holdmq.wire.headers import FilterTerm, TermKind

LEVEL = st.text(st.characters(exclude_characters="+#/\0", exclude_categories=("Cs",)), max_size=12)
INNER = st.lists(LEVEL, min_size=1, max_size=5).map("/".join).filter(lambda name: name and name[0] != "$")
TENANT = st.text("abz-_09", min_size=1, max_size=TENANT_BYTES_MAX)


@pytest.mark.parametrize(
    ("name", "tenant", "inner"),
    [
        ("acme%orders", "acme", "orders"),
        ("%RETRY%acme%readers", "acme", "%RETRY%readers"),
        ("%DLQ%acme%readers", "acme", "%DLQ%readers"),
        ("acme%live#tmp", "acme", "live#tmp"),
        ("acme%|", "acme", "|"),
    ],
)
def test_a_name_says_whose_it_is_and_how_its_tenant_calls_it(name: str, tenant: str, inner: str) -> None:
    assert tenant_of(name) == tenant
    assert within(tenant, name) == inner
    assert in_tenant(tenant, inner) == name


@pytest.mark.parametrize(
    "name", ["orders", "%SESSION", "%RETRY%readers", "%DLQ%g", "%SHARED%", "%", "", "%BAN"]
)
def test_what_is_nobodys_has_no_tenant(name: str) -> None:
    assert tenant_of(name) == ""
    assert within("acme", name) == name
    assert in_tenant("", name) == name


def test_a_tenant_whose_name_begins_as_another_is_not_it() -> None:
    assert within("ac", "acme%orders") == "acme%orders"
    assert within("acme", "acme2%orders") == "acme2%orders"
    assert tenant_of("acme2%orders") == "acme2"
    assert split_mount("$%acme2/t").tenant == "acme2"


@pytest.mark.parametrize("name", ["a", "A-z_09", "x" * TENANT_BYTES_MAX])
def test_names_that_tenants_may_have(name: str) -> None:
    check_tenant(name)


@pytest.mark.parametrize(
    "name", ["", "a%b", "a/b", "a|2E", "ö", "a b", "%a", "a\n", "$a", "x" * (TENANT_BYTES_MAX + 1)]
)
def test_names_that_no_tenant_may_have(name: str) -> None:
    with pytest.raises(UsageError, match="tenant name"):
        check_tenant(name)


@given(TENANT, INNER)
def test_an_mqtt_topic_of_a_tenant_becomes_a_topic_of_the_tenant_and_back(tenant: str, inner: str) -> None:
    mounted = mount_of(tenant) + inner
    assert split_mount(mounted) == Mounted(tenant, inner)
    topic, tag = split_mqtt_topic(mounted)
    assert tenant_of(topic) == tenant
    assert topic_fault(topic) is None
    assert not is_system_topic(topic)
    assert join_mqtt_topic(topic, tag) == mounted
    assert join_mqtt_topic(*other_topic(mounted)) == mounted


@given(INNER)
def test_nobody_outside_can_write_to_a_tenant(inner: str) -> None:
    assert tenant_of(split_mqtt_topic(inner).topic) == ""
    assert split_mount(inner).tenant == ""


@pytest.mark.parametrize(
    ("topic", "tag"),
    [
        ("|24|25acme", "orders/1"),
        ("|24|25", "acme/orders"),
        (OTHER_TOPIC, "$%acme/orders/1"),
        ("mqtt-tree-x", "$%acme/orders/1"),
        ("acme%|24SYS", "x"),
        ("acme%|24|25beta", "x"),
        (f"acme%{OTHER_TOPIC}", "$%beta/x"),
        (f"acme%{OTHER_TOPIC}", "$SYS/x"),
    ],
)
def test_no_application_can_forge_a_topic_that_is_anothers(topic: str, tag: str) -> None:
    assert topic_fault(topic) is None
    assert join_mqtt_topic(topic, tag) is None


def test_where_a_tenants_mqtt_topics_go() -> None:
    assert split_mqtt_topic("$%acme/orders/42") == TopicTag("acme%orders", "42")
    assert split_mqtt_topic("$%acme/orders") == TopicTag("acme%orders", None)
    assert split_mqtt_topic("$%acme//a") == TopicTag("acme%|", "a")
    assert split_mqtt_topic("$%acme/a.b/c") == TopicTag("acme%a|2Eb", "c")
    assert split_mqtt_topic("$%acme/mqtt-other/x") == TopicTag(f"acme%{OTHER_TOPIC}", "mqtt-other/x")
    assert split_mqtt_topic("$%acme/mqtt-tree-x/y") == TopicTag(f"acme%{OTHER_TOPIC}", "mqtt-tree-x/y")
    long = "x" * TOPIC_BYTES_MAX + "/y"
    assert split_mqtt_topic("$%acme/" + long) == TopicTag(f"acme%{OTHER_TOPIC}", long)
    assert is_whole(f"acme%{OTHER_TOPIC}")
    assert not is_whole("mqtt-other%x")
    assert level_of_topic("acme%orders") == "$%acme/orders"
    assert join_mqtt_topic("acme%|", None) is None
    assert join_mqtt_topic(f"acme%{OTHER_TOPIC}", "") is None
    assert join_mqtt_topic("acme%live#tmp", "x") is None


@pytest.mark.parametrize(
    "name", ["a%b%c", "a b%c", "acme%", "acme%%c", "x" * 33 + "%c", "|C3|B6%a", "acme%a b"]
)
def test_one_tenant_stands_before_a_name_and_both_are_names(name: str) -> None:
    assert topic_fault(name) is not None
    assert group_fault(name) is not None


def test_topics_and_groups_of_a_tenant_are_names() -> None:
    assert topic_fault("acme%orders") is None
    assert group_fault("acme%readers") is None
    assert group_fault("acme%panel#tmp") is None


def test_filters_of_a_tenant_reach_its_topics_alone() -> None:
    assert filter_terms("$%acme/#") == [FilterTerm(TermKind.TOPIC, "acme%", 0, "")]
    assert filter_terms("$%acme/+/#") == [FilterTerm(TermKind.TOPIC, "acme%", 0, "")]
    trees = [("mqtt-tree-x", 2)]
    other = f"acme%{OTHER_TOPIC}"
    assert topic_of_filter("$%acme/orders/+") == "acme%orders"
    assert topic_of_filter("$%acme/+/x") is None
    assert filter_terms("$%acme/orders/#", 1, trees) == [
        FilterTerm(TermKind.TOPIC, "acme%orders", 0, ""),
        tag_filter_term(other, "orders/#", 2),
    ]
    assert filter_terms("$%acme/+/x", 1, trees) == [
        FilterTerm(TermKind.MQTT, "acme%", 0, "x"),
        tag_filter_term(other, "+/x", 2),
    ]
    assert filter_terms("$%acme/+", 1, trees) == [tag_term("acme%", None), tag_filter_term(other, "+", 2)]
