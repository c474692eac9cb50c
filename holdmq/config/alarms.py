"""The section of the configuration that says what alarms are raised for, and whom they tell."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Final, Literal, NamedTuple
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationInfo, field_validator

from holdmq.config.section import Section, is_loopback
from holdmq.errors import ConfigError

_THRESHOLD: Final = re.compile(r"(messages|age_s)=([0-9]{1,12})\Z")
_HEADER_SAFE: Final = re.compile(r"[\x21-\x7e]+\Z")


class BacklogRule(NamedTuple):
    """Thresholds of the groups or topics whose name matches `pattern` (`*`, `?`, `[…]`); 0 = none."""

    pattern: str
    messages: int
    age_s: int


def parse_rule(text: str) -> BacklogRule:
    """Read `PATTERN messages=N age_s=N`, with one threshold or both. ValueError says what is wrong."""
    pattern, *given = text.split()
    found = _thresholds(text, given)
    if not found:
        raise ValueError(f"{text!r} has no threshold: PATTERN messages=N, PATTERN age_s=N, or both")
    return BacklogRule(pattern, found.get("messages", 0), found.get("age_s", 0))


def parse_total(text: str) -> BacklogRule:
    """Read `messages=N age_s=N`, either, or nothing (no threshold). ValueError says what is wrong."""
    found = _thresholds(text, text.split())
    return BacklogRule("*", found.get("messages", 0), found.get("age_s", 0))


def _thresholds(text: str, given: list[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in given:
        match = _THRESHOLD.match(part)
        if match is None or match[1] in found or int(match[2]) < 1:
            raise ValueError(f"{text!r}: {part!r} is not messages=N or age_s=N, each once, from 1 on")
        found[match[1]] = int(match[2])
    return found


class AlarmsSection(Section):
    """What brokers and registries raise alarms for, and whom they tell."""

    interval_s: float = Field(
        10, ge=0.1, le=3600, description="How often alarms are looked for: a person comes in minutes."
    )
    cooldown_s: float = Field(
        900,
        ge=1,
        le=604_800,
        description="Least time between two notices of one alarm, but for the one that it is over: a quarter "
        "of an hour, in which somebody is already at it. One that lasts is told again as often.",
    )
    backlog: list[str] = Field(
        [],
        description="Rules for the backlog of groups at each broker, as 'billing-* messages=10000 age_s=60': "
        "the first whose pattern matches a group counts. Empty = no backlog is too long.",
    )
    backlog_topics: list[str] = Field(
        [],
        description="Rules for the backlog of topics at each broker, over all of their groups, as "
        "'orders-* messages=10000 age_s=60': the first whose pattern matches a topic counts. Empty = none.",
    )
    backlog_total: str = Field(
        "",
        description="Thresholds of the backlog of each broker, over all groups and topics, as "
        "'messages=1000000 age_s=3600', or one of them. Empty = none.",
    )
    dead_letters: int = Field(
        1,
        ge=0,
        le=1_000_000_000,
        description="Dead letters of a group from which on there is an alarm, until none came for "
        "cooldown_s: the first one is news. 0 = never.",
    )
    lost_records: int = Field(
        1,
        ge=0,
        le=1_000_000_000,
        description="Confirmed messages that the servers of the key-value engine lost within an hour, from "
        "which on there is an alarm, until none was for cooldown_s: the first one is news. 0 = never.",
    )
    replica_lag_s: int = Field(
        30,
        ge=0,
        le=604_800,
        description="How far a copy may be behind its leader before there is an alarm: ten times "
        "replication.lag_ms, more than a hiccup or a restart. 0 = never.",
    )
    copies_missing_s: int = Field(
        60,
        ge=0,
        le=604_800,
        description="How long replicas may be out of sync before there is an alarm: a copy that is restarted "
        "in an upgrade is back sooner. That one copy is left is told at once. 0 = never.",
    )
    lost_after_s: float = Field(
        30,
        ge=0,
        le=86400,
        description="How long a broker, gateway, registry or Spark job that said no goodbye must be gone "
        "before there is an alarm: a restart takes less. 0 = never.",
    )
    lost_forget_s: float = Field(
        86400,
        ge=1,
        le=31_536_000,
        description="After so long the alarm of a lost process is over, though it did not come back: it was "
        "replaced under another name.",
    )
    smtp_host: str = Field("", description="Mail server for notices; empty = no mail.")
    smtp_port: int = Field(587, ge=1, le=65535, description="Port of the mail server: submission.")
    smtp_security: Literal["starttls", "tls", "none"] = Field(
        "starttls",
        description="starttls = refuse a server that does not offer it, tls = from the first byte (port "
        "465), none = in the clear.",
    )
    smtp_ca: str = Field(
        "",
        description="PEM file of the authorities that sign the server's certificate; empty = the system's.",
    )
    smtp_user: str = Field("", description="Name to log in with; empty = no login.")
    smtp_password: SecretStr | None = Field(None, description="Password of smtp_user; better in a file.")
    smtp_password_file: str = Field(
        "", description="File whose one line is the password, read for each mail."
    )
    mail_from: str = Field("", description="Sender of the mails; needed with smtp_host.")
    mail_to: list[str] = Field([], description="Who gets the mails; needed with smtp_host.")
    webhook_url: str = Field("", description="http or https address that gets a JSON POST; empty = none.")
    webhook_token: SecretStr | None = Field(
        None, description="Sent to the webhook as 'Authorization: Bearer …'; better in a file."
    )
    webhook_token_file: str = Field("", description="File whose one line is the token; read each time.")
    timeout_s: float = Field(
        10, gt=0, le=300, description="How long a mail server or webhook may be silent: then tried again."
    )

    @field_validator("backlog", "backlog_topics")
    @classmethod
    def _rules_can_be_read(cls, value: list[str]) -> list[str]:
        for text in value:
            if not text.strip():
                raise ValueError("a rule is empty")
            parse_rule(text)
        return value

    @field_validator("backlog_total")
    @classmethod
    def _total_can_be_read(cls, value: str) -> str:
        parse_total(value)
        return value

    @field_validator("mail_from", "mail_to")
    @classmethod
    def _are_addresses(cls, value: str | list[str], info: ValidationInfo) -> str | list[str]:
        for address in [value] if isinstance(value, str) else value:
            if (address or info.field_name == "mail_to") and (
                "@" not in address or not _HEADER_SAFE.match(address)
            ):
                raise ValueError(f"{address!r} is no mail address")
        return value

    @field_validator("webhook_url")
    @classmethod
    def _is_http(cls, value: str) -> str:
        parts = urlsplit(value)
        if value and (parts.scheme not in ("http", "https") or not parts.hostname):
            raise ValueError(f"{value!r} is no http or https address")
        return value

    def check(self) -> None:
        """Raise ConfigError when keys do not go together."""
        if self.smtp_host and not (self.mail_from and self.mail_to):
            raise ConfigError("alarms.smtp_host is set: set alarms.mail_from and alarms.mail_to too")
        if self.smtp_password and self.smtp_password_file:
            raise ConfigError("alarms.smtp_password and alarms.smtp_password_file are both set")
        if self.webhook_token and self.webhook_token_file:
            raise ConfigError("alarms.webhook_token and alarms.webhook_token_file are both set")
        has_password = bool(self.smtp_password or self.smtp_password_file)
        if bool(self.smtp_user) != has_password:
            raise ConfigError("alarms.smtp_user and alarms.smtp_password(_file) belong together")
        if has_password and self.smtp_security == "none" and not is_loopback(self.smtp_host):
            raise ConfigError(
                "alarms.smtp_security is none, and the password would go in the clear: use starttls or tls"
            )
        is_clear = urlsplit(self.webhook_url).scheme == "http"
        host = urlsplit(self.webhook_url).hostname or ""
        if (self.webhook_token or self.webhook_token_file) and is_clear and not is_loopback(host):
            raise ConfigError("alarms.webhook_url is http, and the token would go in the clear: use https")

    def rules(self) -> list[BacklogRule]:
        """The rules for backlogs of groups, in order."""
        return [parse_rule(text) for text in self.backlog]

    def topic_rules(self) -> list[BacklogRule]:
        """The rules for backlogs of topics, in order."""
        return [parse_rule(text) for text in self.backlog_topics]

    def total_rule(self) -> BacklogRule:
        """The thresholds of all backlogs together."""
        return parse_total(self.backlog_total)


def rule_of(rules: list[BacklogRule], name: str) -> BacklogRule | None:
    """The first rule that matches a group or topic; None = none does."""
    return next((rule for rule in rules if fnmatchcase(name, rule.pattern)), None)
