from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from holdmq.config.alarms import AlarmsSection, BacklogRule, parse_rule, parse_total, rule_of
from holdmq.errors import ConfigError

MAIL: dict[str, Any] = {"smtp_host": "mail.example", "mail_from": "a@example", "mail_to": ["b@example"]}


def test_a_rule_has_a_pattern_and_one_threshold_or_both() -> None:
    assert parse_rule("billing messages=5") == BacklogRule("billing", 5, 0)
    assert parse_rule("  *  age_s=60   messages=7 ") == BacklogRule("*", 7, 60)


@pytest.mark.parametrize(
    "text",
    [
        "billing",
        "billing messages=0",
        "* messages=1 messages=2",
        "* messages",
        "* lag=3",
        "* age_s=-1",
        "* age_s=1m",
    ],
)
def test_a_rule_that_cannot_be_read_is_refused_by_its_text(text: str) -> None:
    with pytest.raises(ValidationError) as refused:
        AlarmsSection(backlog=["* age_s=1", text])
    assert text in str(refused.value)


def test_the_threshold_of_all_backlogs_has_no_pattern() -> None:
    assert parse_total("age_s=60 messages=7") == BacklogRule("*", 7, 60)
    assert parse_total("") == BacklogRule("*", 0, 0)
    with pytest.raises(ValidationError, match="messages=N or age_s=N"):
        AlarmsSection(backlog_total="* messages=7")


def test_an_empty_rule_is_refused() -> None:
    with pytest.raises(ValidationError, match="empty"):
        AlarmsSection(backlog=[" "])


def test_the_first_rule_that_matches_a_group_counts() -> None:
    rules = AlarmsSection(backlog=["billing-* messages=5", "billing-eu age_s=1", "[ab]? age_s=2"]).rules()
    assert rule_of(rules, "billing-eu") == BacklogRule("billing-*", 5, 0)
    assert rule_of(rules, "ax") == BacklogRule("[ab]?", 0, 2)
    assert rule_of(rules, "billing") is None


@pytest.mark.parametrize("address", ["nobody", "a@b\nBcc: c@d", "a b@c", ""])
def test_what_is_no_mail_address_is_refused(address: str) -> None:
    with pytest.raises(ValidationError, match="no mail address"):
        AlarmsSection(mail_to=[address])


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://a/b", "example.com/hook", "http:///x"])
def test_a_webhook_is_an_http_address(url: str) -> None:
    with pytest.raises(ValidationError, match="no http or https address"):
        AlarmsSection(webhook_url=url)


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"smtp_host": "mail.example"}, "mail_from"),
        ({**MAIL, "smtp_user": "u"}, "belong together"),
        ({**MAIL, "smtp_password_file": "p"}, "belong together"),
        ({**MAIL, "smtp_user": "u", "smtp_password": "p", "smtp_password_file": "p"}, "both set"),
        ({**MAIL, "smtp_user": "u", "smtp_password": "p", "smtp_security": "none"}, "in the clear"),
        ({"webhook_url": "http://hook.example/", "webhook_token": "t"}, "in the clear"),
        (
            {"webhook_url": "https://hook.example/", "webhook_token": "t", "webhook_token_file": "f"},
            "both set",
        ),
    ],
)
def test_keys_that_do_not_go_together_are_refused(keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        AlarmsSection(**keys).check()


def test_what_goes_together_passes() -> None:
    AlarmsSection().check()
    AlarmsSection(**MAIL).check()
    AlarmsSection(**MAIL, smtp_user="u", smtp_password="p").check()
    local = {**MAIL, "smtp_host": "127.0.0.1"}
    AlarmsSection(**local, smtp_user="u", smtp_password_file="f", smtp_security="none").check()
    AlarmsSection(webhook_url="http://localhost/x", webhook_token="t").check()
    AlarmsSection(webhook_url="https://hook.example/x", webhook_token="t").check()


def test_the_pages_example_is_a_configuration() -> None:
    page = Path(__file__).parents[3].joinpath("docs", "alarms.md").read_text(encoding="utf-8")
    ((example),) = re.findall(r"^```toml\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    section = AlarmsSection(**tomllib.loads(example)["alarms"])
    section.check()
    assert [rule.pattern for rule in section.rules()] == ["billing-*", "*"]


def test_secrets_are_not_shown() -> None:
    assert "hunter2" not in repr(AlarmsSection(smtp_password="hunter2", webhook_token="hunter2"))
