from __future__ import annotations

import pytest
from pydantic import ValidationError

from holdmq.config.model import GatewaySection
from holdmq.config.routes import ROUTES_MAX, TREES_MAX


def section(*routes: tuple[str, str]) -> GatewaySection:
    return GatewaySection.model_validate({"routes": [{"filter": f, "topic": t} for f, t in routes]})


def test_rules_keep_their_order() -> None:
    rules = section(("a/+/debug", "mqtt-tree-debug"), ("a/#", "mqtt-tree-a")).routes
    assert [(rule.filter, rule.topic) for rule in rules] == [
        ("a/+/debug", "mqtt-tree-debug"),
        ("a/#", "mqtt-tree-a"),
    ]


@pytest.mark.parametrize(
    ("topic_filter", "topic", "sentence"),
    [
        ("a/#/b", "mqtt-tree-a", "#"),
        ("", "mqtt-tree-a", "at least 1"),
        ("$SYS/#", "mqtt-tree-a", "cannot be published"),
        ("a/#", "sensors", "mqtt-tree-"),
        ("a/#", "mqtt-tree-", "mqtt-tree-"),
        ("a/#", "mqtt-other", "mqtt-tree-"),
    ],
)
def test_what_is_no_rule_is_refused(topic_filter: str, topic: str, sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        section((topic_filter, topic))


def test_rules_and_their_topics_are_bounded() -> None:
    section(*[(f"a{n}/#", f"mqtt-tree-{n % TREES_MAX}") for n in range(ROUTES_MAX)])
    with pytest.raises(ValidationError, match=f"{ROUTES_MAX} are possible"):
        section(*[(f"a{n}/#", "mqtt-tree-a") for n in range(ROUTES_MAX + 1)])
    with pytest.raises(ValidationError, match=f"{TREES_MAX} are possible"):
        section(*[(f"a{n}/#", f"mqtt-tree-{n}") for n in range(TREES_MAX + 1)])
