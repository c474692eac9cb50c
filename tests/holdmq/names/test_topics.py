from __future__ import annotations

import random

import pytest
import xxhash
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from holdmq.mqtt.filters import matches
from holdmq.names.topics import (
    GROUP_BYTES_MAX,
    OTHER_TOPIC,
    TAG_BYTES_MAX,
    TOPIC_BYTES_MAX,
    TopicTag,
    filter_terms,
    group_fault,
    is_system_topic,
    is_temporary,
    is_whole,
    join_mqtt_topic,
    level_of_topic,
    other_topic,
    queue_of_key,
    rank_queues,
    split_mqtt_topic,
    system_topic_fault,
    tag_fault,
    tag_filter_term,
    tag_matches,
    tag_term,
    topic_fault,
    topic_of_filter,
)
from holdmq.record.codec import prefix_hash, tag_hash
from holdmq.wire.headers import FilterTerm, TermKind

LEVEL = st.text(st.characters(exclude_characters="+#/\0", exclude_categories=("Cs",)), max_size=12)
MQTT_TOPIC = st.lists(LEVEL, min_size=1, max_size=5).map("/".join).filter(bool)


@pytest.mark.parametrize(
    ("mqtt_topic", "topic", "tag"),
    [
        ("devices/42/temp", "devices", "42/temp"),
        ("devices", "devices", None),
        ("devices/", "devices", ""),
        ("devices//", "devices", "/"),
        ("/a", "|", "a"),
        ("/", "|", ""),
        ("//", "|", "/"),
        ("a.b/c", "a|2Eb", "c"),
        ("a|b/c", "a|7Cb", "c"),
        ("|/c", "|7C", "c"),
        ("%SESSION/c", "|25SESSION", "c"),
        ("wörter/c", "w|C3|B6rter", "c"),
        ("a b", "a|20b", None),
        ("mqtt-other/x", "mqtt-other", "mqtt-other/x"),
        ("mqtt-other", "mqtt-other", "mqtt-other"),
        ("mqtt-tree-x/y", "mqtt-other", "mqtt-tree-x/y"),
        ("x" * 127, "x" * 127, None),
        ("x" * 128 + "/y", "mqtt-other", "x" * 128 + "/y"),
        ("ö" * 22, "mqtt-other", "ö" * 22),
    ],
)
def test_an_mqtt_topic_becomes_a_topic_and_a_tag_and_back(
    mqtt_topic: str, topic: str, tag: str | None
) -> None:
    assert split_mqtt_topic(mqtt_topic) == TopicTag(topic, tag)
    assert join_mqtt_topic(topic, tag) == mqtt_topic


@given(MQTT_TOPIC)
def test_the_mapping_has_an_inverse_and_makes_names_that_clients_may_use(mqtt_topic: str) -> None:
    topic, tag = split_mqtt_topic(mqtt_topic)
    assert join_mqtt_topic(topic, tag) == mqtt_topic
    assert topic_fault(topic) is None
    assert tag is None or tag_fault(tag) is None
    assert join_mqtt_topic(*other_topic(mqtt_topic)) == mqtt_topic


@given(st.text("ab|%2EC3+/#. \0", max_size=8))
def test_a_name_that_clients_may_use_is_the_only_name_of_its_level(name: str) -> None:
    if topic_fault(name) is None and not is_temporary(name):
        level = level_of_topic(name)
        assert level is not None
        assert split_mqtt_topic(f"{level}/t") == TopicTag(name, "t")


@pytest.mark.parametrize(
    ("topic", "tag"),
    [
        ("%SESSION", "x"),
        ("live#tmp", "x"),
        ("a|2eb", "x"),
        ("|41", "x"),
        ("a/b", "x"),
        (OTHER_TOPIC, None),
        ("mqtt-tree-x", None),
        (OTHER_TOPIC, ""),
        ("|", None),
    ],
)
def test_what_mqtt_cannot_see_has_no_mqtt_topic(topic: str, tag: str | None) -> None:
    assert join_mqtt_topic(topic, tag) is None


@pytest.mark.parametrize("name", ["a", "A-z_09", "|", "a|2Eb", "x" * 127, "live#tmp", "|C3|B6", "|7C"])
def test_good_topic_names_have_no_fault(name: str) -> None:
    assert topic_fault(name) is None


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("", "empty"),
        ("x" * 128, "longer than 127"),
        ("ö" * 64, "longer than 127"),
        ("%SESSION", "system topic"),
        ("a.b", "letters"),
        ("a|2", "letters"),
        ("a|2eb", "letters"),
        ("a||2E", "letters"),
        ("a#tmp#tmp", "letters"),
        ("#tmp", "letters"),
        ("a\n", "letters"),
        ("\ud800", "letters"),
        ("|41", "stands for itself"),
        ("a|2Bb", "no MQTT level"),
        ("a|23b", "no MQTT level"),
        ("a|2Fb", "no MQTT level"),
        ("a|00b", "no MQTT level"),
        ("|C3", "no UTF-8"),
    ],
)
def test_a_bad_topic_name_is_refused_with_its_reason(name: str, fault: str) -> None:
    assert fault in (topic_fault(name) or "")


def test_system_names_are_for_system_calls_only() -> None:
    for name in ("%SESSION", "%RETRY%my-group", "%SHARED%", "%RETRY%" + "g" * GROUP_BYTES_MAX):
        assert is_system_topic(name)
        assert system_topic_fault(name) is None
        assert topic_fault(name) is not None
    for name in ("%", "SESSION", "%a/b", "%" + "x" * TOPIC_BYTES_MAX, "%a\n"):
        assert "system topic name" in (system_topic_fault(name) or "")


def test_group_names_leave_room_for_the_retry_topic() -> None:
    for name in ("g", "a-b_C9", "g" * GROUP_BYTES_MAX, "panel#tmp"):
        assert group_fault(name) is None
    for name in ("", "g" * (GROUP_BYTES_MAX + 1), "a|2E", "%g", "#tmp", "a b"):
        assert "group name" in (group_fault(name) or "")
    assert system_topic_fault("%RETRY%" + "g" * GROUP_BYTES_MAX) is None


def test_a_tag_that_no_mqtt_topic_could_have_is_refused() -> None:
    for tag in ("", "42/temp", "ö", "/", "x" * TAG_BYTES_MAX, b"\xc3\xb6"):
        assert tag_fault(tag) is None
    for tag in ("a+", "a/#", "\0", b"a+b"):
        assert "U+0000" in (tag_fault(tag) or "")
    assert "UTF-8" in (tag_fault(b"\xc3") or "")
    assert "UTF-8" in (tag_fault("\ud800") or "")
    assert str(TAG_BYTES_MAX) in (tag_fault("x" * (TAG_BYTES_MAX + 1)) or "")


def other(kind: int, hashed: int = 0, tag_filter: str = "") -> FilterTerm:
    return FilterTerm(kind, OTHER_TOPIC, hashed, tag_filter)


@pytest.mark.parametrize(
    ("mqtt_filter", "terms"),
    [
        ("#", [FilterTerm(TermKind.TOPIC, "", 0, "")]),
        ("+/#", [FilterTerm(TermKind.TOPIC, "", 0, "")]),
        ("+", [FilterTerm(TermKind.TAG, "", 0, ""), other(TermKind.MQTT, 0, "+")]),
        ("+/x", [FilterTerm(TermKind.MQTT, "", 0, "x"), other(TermKind.MQTT, 0, "+/x")]),
        ("+/x/#", [FilterTerm(TermKind.MQTT, "", 0, "x/#"), other(TermKind.MQTT, 0, "+/x/#")]),
        ("d", [FilterTerm(TermKind.TAG, "d", 0, ""), other(TermKind.TAG, tag_hash(b"d", 2))]),
        (
            "d/",
            [FilterTerm(TermKind.TAG, "d", tag_hash(b"", 1), ""), other(TermKind.TAG, tag_hash(b"d/", 2))],
        ),
        ("d/#", [FilterTerm(TermKind.TOPIC, "d", 0, ""), other(TermKind.MQTT, 0, "d/#")]),
        (
            "d/4",
            [FilterTerm(TermKind.TAG, "d", tag_hash(b"4", 1), ""), other(TermKind.TAG, tag_hash(b"d/4", 2))],
        ),
        ("d/+", [FilterTerm(TermKind.MQTT, "d", 0, "+"), other(TermKind.MQTT, 0, "d/+")]),
        (
            "d/4/#",
            [
                FilterTerm(TermKind.PREFIX, "d", prefix_hash(b"4"), ""),
                other(TermKind.PREFIX, prefix_hash(b"d/4", 2)),
            ],
        ),
        (
            "d/4/+/x",
            [
                FilterTerm(TermKind.PREFIX, "d", prefix_hash(b"4"), ""),
                other(TermKind.PREFIX, prefix_hash(b"d/4", 2)),
            ],
        ),
        ("d/+/x", [FilterTerm(TermKind.MQTT, "d", 0, "+/x"), other(TermKind.MQTT, 0, "d/+/x")]),
        (
            "/a",
            [FilterTerm(TermKind.TAG, "|", tag_hash(b"a", 1), ""), other(TermKind.TAG, tag_hash(b"/a", 2))],
        ),
        ("a.b/#", [FilterTerm(TermKind.TOPIC, "a|2Eb", 0, ""), other(TermKind.MQTT, 0, "a.b/#")]),
        ("mqtt-other/#", [other(TermKind.MQTT, 0, "mqtt-other/#")]),
        ("x" * 128 + "/#", [other(TermKind.MQTT, 0, "x" * 128 + "/#")]),
    ],
)
def test_a_filter_becomes_the_cheapest_terms(mqtt_filter: str, terms: list[FilterTerm]) -> None:
    assert filter_terms(mqtt_filter) == terms


def test_terms_follow_the_key_levels_of_the_topic() -> None:
    assert filter_terms("d/a/b/#", 2)[0] == FilterTerm(TermKind.PREFIX, "d", prefix_hash(b"a/b", 2), "")
    assert filter_terms("d/a/#", 2)[0] == FilterTerm(TermKind.MQTT, "d", 0, "a/#")
    assert filter_terms("d/a", 2)[0] == FilterTerm(TermKind.TAG, "d", tag_hash(b"a", 2), "")
    assert topic_of_filter("d/a/#") == "d"
    assert topic_of_filter("/a") == "|"
    assert topic_of_filter("+/a") is None
    assert topic_of_filter("#") is None
    assert topic_of_filter("mqtt-other/a") is None
    assert topic_of_filter("mqtt-tree-x/a") is None
    assert topic_of_filter("x" * 200) is None


def passes(term: FilterTerm, topic: str, tag: str | None, key_levels: int) -> bool:
    """What a broker does with a term, written down plainly."""
    if term.topic not in ("", topic):
        return False
    hashed = tag_hash(None if tag is None else tag.encode(), key_levels)
    if term.kind == TermKind.TOPIC:
        return True
    if term.kind == TermKind.TAG:
        return hashed == term.hash
    if term.kind == TermKind.PREFIX:
        return hashed >> 32 == term.hash >> 32
    return tag_matches(term.filter, tag)


SMALL_LEVEL = st.sampled_from(["a", "b", "", "$x", "é", "mqtt-other", "mqtt-tree-x"])
SMALL_TOPIC = st.lists(SMALL_LEVEL, min_size=1, max_size=4).map("/".join).filter(bool)


@st.composite
def matching(draw: st.DrawFn) -> tuple[str, str]:
    """A topic, and a filter made of it: levels become +, and the end becomes #."""
    topic = draw(SMALL_TOPIC)
    levels = [draw(st.sampled_from([level, level, "+"])) for level in topic.split("/")]
    if draw(st.booleans()):
        levels = [*levels[: draw(st.integers(0, len(levels)))], "#"]
    return "/".join(levels), topic


MATCHING = matching()


@settings(max_examples=1000)
@given(MATCHING, st.integers(1, 3), st.booleans())
def test_terms_never_miss_a_message_that_the_filter_matches(
    pair: tuple[str, str], key_levels: int, is_other: bool
) -> None:
    mqtt_filter, mqtt_topic = pair
    assume(mqtt_filter and matches(mqtt_filter, mqtt_topic))
    topic, tag = other_topic(mqtt_topic) if is_other else split_mqtt_topic(mqtt_topic)
    levels = 2 if topic == OTHER_TOPIC else key_levels
    assert any(passes(term, topic, tag, levels) for term in filter_terms(mqtt_filter, key_levels))


def test_no_tag_and_the_empty_tag_are_two_things() -> None:
    assert tag_term("t", None) != tag_term("t", "")
    assert tag_matches("#", None)
    assert not tag_matches("+", None)
    assert tag_matches("+", "")
    assert tag_matches("#", "")
    assert tag_matches("42/#", "42")
    assert tag_filter_term("t", "#") == FilterTerm(TermKind.TOPIC, "t", 0, "")


def test_a_dollar_in_a_tag_is_nothing_special() -> None:
    assert tag_matches("+", "$x")
    assert tag_matches("#", "$x/y")


QUEUES = [(f"broker-{b}", q) for b in range(3) for q in range(4)]


def test_the_queue_of_a_key_is_the_highest_hash_of_the_documented_bytes() -> None:
    for key in ("", "device-7", "ö"):
        weights = {
            (name, queue_id): xxhash.xxh3_64_intdigest(
                key.encode() + name.encode() + queue_id.to_bytes(4, "big")
            )
            for name, queue_id in QUEUES
        }
        assert queue_of_key(key, QUEUES) == max(weights, key=lambda queue: weights[queue])


def test_the_queue_of_a_key_never_changes_between_versions() -> None:
    assert [queue_of_key(f"device-{i}", QUEUES) for i in range(4)] == GOLDEN_QUEUES


def test_order_of_queues_does_not_matter_and_ranks_begin_with_the_key_s_own() -> None:
    shuffled = QUEUES[:]
    random.Random(1).shuffle(shuffled)
    for i in range(200):
        ranked = rank_queues(f"k{i}", shuffled)
        assert ranked[0] == queue_of_key(f"k{i}", QUEUES) == queue_of_key(f"k{i}".encode(), shuffled)
        assert sorted(ranked) == sorted(QUEUES)


def test_a_new_queue_takes_only_keys_that_it_wins_and_its_share_of_them() -> None:
    more = [*QUEUES, ("broker-3", 0)]
    moved = 0
    for i in range(13_000):
        before, after = queue_of_key(f"k{i}", QUEUES), queue_of_key(f"k{i}", more)
        if before != after:
            assert after == ("broker-3", 0)
            moved += 1
    assert 800 < moved < 1200


GOLDEN_QUEUES = [("broker-2", 2), ("broker-0", 0), ("broker-2", 3), ("broker-0", 0)]


def test_trees_have_whole_mqtt_topics_as_tags() -> None:
    assert is_whole("mqtt-tree-x")
    assert is_whole(OTHER_TOPIC)
    assert not is_whole("mqtt-tree")
    assert join_mqtt_topic("mqtt-tree-x", "a/b") == "a/b"
    assert level_of_topic("mqtt-tree-x") is None


@given(MQTT_TOPIC, st.integers(1, 3), st.lists(SMALL_LEVEL | st.sampled_from(["+"]), min_size=1, max_size=4))
def test_what_matches_a_filter_passes_its_terms_in_every_tree(
    mqtt_topic: str, levels: int, wanted: list[str]
) -> None:
    mqtt_filter = "/".join(wanted)
    if not matches(mqtt_filter, mqtt_topic):
        mqtt_filter = mqtt_topic
    terms = filter_terms(mqtt_filter, 1, [("mqtt-tree-x", levels)])
    [term] = [term for term in terms if term.topic == "mqtt-tree-x"]
    hashed = tag_hash(mqtt_topic.encode(), levels)
    if term.kind == TermKind.TAG:
        assert term.hash == hashed
    elif term.kind == TermKind.PREFIX:
        assert term.hash >> 32 == hashed >> 32
    elif term.kind == TermKind.MQTT:
        assert tag_matches(term.filter, mqtt_topic)
