"""The options of ``format("holdmq")``: one registry of names, meanings and checks.

Option names are case-insensitive, as everywhere in Spark; values are text.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

from holdmq.errors import ConfigError, UsageError
from holdmq.rpc.security import Security
from spark_streaming.source.columns import COLUMNS
from spark_streaming.source.offsets import LATEST, Offsets, check_offsets

SYSTEM_PREFIX: Final = "%"
MAX_RECORDS_DEFAULT: Final = 500_000
"""Records of one micro-batch: about a second's work of one core, so that a backlog is left in steps."""
ENV_SECRET: Final = "HOLDMQ_CLIENT__SECRET"
READ_TIMEOUT_DEFAULT_MS: Final = 30_000
"""How long a task waits for a broker that is away: a restart takes seconds, and tasks are retried."""


class Options(NamedTuple):
    """The checked options of one source; picklable."""

    registries: tuple[str, ...]
    topics: tuple[str, ...]
    tags: frozenset[str] | None
    starting: Offsets | None
    starting_latest: bool
    ending: Offsets | None
    max_records: int
    max_partitions: int
    fail_on_data_loss: bool
    columns: tuple[str, ...]
    read_timeout_s: float
    security: Security | None

    def is_wanted(self, topic: str) -> bool:
        """Return whether `topic` is read: it matches a name or pattern and is no system topic."""
        if topic.startswith(SYSTEM_PREFIX):
            return False
        return any(fnmatchcase(topic, pattern) for pattern in self.topics)


class _Option(NamedTuple):
    default: str | None
    check: Callable[[str], Any]
    meaning: str


def _texts(value: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in value.split(",") if part.strip())
    if not found:
        raise ValueError("names at least one")
    return found


def _addresses(value: str) -> tuple[str, ...]:
    found = _texts(value)
    for address in found:
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise ValueError(f"{address!r} is no host:port")
    return found


def _topics(value: str) -> tuple[str, ...]:
    found = _texts(value)
    for topic in found:
        if topic.startswith(SYSTEM_PREFIX):
            raise ValueError(f"{topic!r} is a system topic, which is not read")
    return found


def _tags(value: str) -> frozenset[str] | None:
    return None if value.strip() == "*" else frozenset(_texts(value))


def _count(value: str) -> int:
    number = int(value) if value.strip().isdigit() else 0
    if number < 1:
        raise ValueError("must be a whole number from 1 on")
    return number


def _flag(value: str) -> bool:
    known = {"true": True, "false": False}.get(value.strip().lower())
    if known is None:
        raise ValueError("must be true or false")
    return known


def _columns(value: str) -> tuple[str, ...]:
    found = tuple(COLUMNS) if value.strip() == "*" else _texts(value)
    for name in found:
        if name not in COLUMNS:
            raise ValueError(f"{name!r} is no column; there are {', '.join(COLUMNS)}")
    if len(set(found)) < len(found):
        raise ValueError("a column is named twice")
    return found


def _starting(value: str) -> tuple[Offsets, bool]:
    word = value.strip().lower()
    if word in ("earliest", LATEST):
        return {}, word == LATEST
    return _offsets(value), False


def _ending(value: str) -> Offsets | None:
    return None if value.strip().lower() == LATEST else _offsets(value)


def _offsets(value: str) -> Offsets:
    try:
        return check_offsets(json.loads(value))
    except ValueError as error:
        raise ValueError(f"is neither a known word nor offsets: {error}") from error


def _text(value: str) -> str:
    return value.strip()


OPTIONS: Final[dict[str, _Option]] = {
    "registry": _Option("127.0.0.1:9876", _addresses, "host:port of registries, separated by commas"),
    "topics": _Option("*", _topics, "topics, names or patterns (* ? [a-z]), separated by commas"),
    "tags": _Option("*", _tags, "exact tags, separated by commas; * = every message"),
    "starting_offsets": _Option(
        "earliest", _starting, "earliest, latest, or offsets; queues not named are read from their first"
    ),
    "ending_offsets": _Option(LATEST, _ending, "latest, or offsets; batch reads only"),
    "max_records_per_batch": _Option(str(MAX_RECORDS_DEFAULT), _count, "bound of one micro-batch"),
    "max_partitions": _Option(None, _count, "tasks of one batch; the driver machine's cores unless set"),
    "fail_on_data_loss": _Option(
        "true", _flag, "fail when retention removed what was not read yet; else go on and log the count"
    ),
    "columns": _Option("*", _columns, "columns to read; leaving out body and texts is cheapest"),
    "read_timeout_ms": _Option(
        str(READ_TIMEOUT_DEFAULT_MS), _count, "how long a task waits for an absent broker before it fails"
    ),
    "access_key": _Option("", _text, f"name of an access key; its secret is in secret_file or {ENV_SECRET}"),
    "secret_file": _Option("", _text, "file with the secret of access_key, on every machine that reads"),
    "tls": _Option("false", _flag, "TLS, with the system's authorities unless tls_ca is set"),
    "tls_ca": _Option("", _text, "PEM file of the authorities that may sign servers' certificates"),
    "tls_cert": _Option("", _text, "PEM file of the client certificate"),
    "tls_key": _Option("", _text, "PEM file of the key of tls_cert"),
    "tls_server_name": _Option("", _text, "name to look for in servers' certificates"),
}
"""Every option: default (None = computed), check, meaning."""

_SPARKS_OWN: Final = frozenset({"path"})


def parse_options(given: Mapping[str, str]) -> Options:
    """Check what the user gave and fill in defaults; ConfigError names a wrong or unknown option."""
    values: dict[str, Any] = {}
    for name in given:
        if name.lower() not in OPTIONS and name.lower() not in _SPARKS_OWN:
            raise ConfigError(f"format holdmq: unknown option {name!r}; there are {', '.join(OPTIONS)}")
    lowered = {name.lower(): value for name, value in given.items()}
    for name, option in OPTIONS.items():
        text = lowered.get(name, option.default)
        try:
            values[name] = None if text is None else option.check(text)
        except ValueError as error:
            raise ConfigError(
                f"format holdmq: option {name} = {text!r} {error}; it takes {option.meaning}"
            ) from error
    starting, starting_latest = values["starting_offsets"]
    return Options(
        registries=values["registry"],
        topics=values["topics"],
        tags=values["tags"],
        starting=starting,
        starting_latest=starting_latest,
        ending=values["ending_offsets"],
        max_records=values["max_records_per_batch"],
        max_partitions=values["max_partitions"] or os.cpu_count() or 1,
        fail_on_data_loss=values["fail_on_data_loss"],
        columns=values["columns"],
        read_timeout_s=values["read_timeout_ms"] / 1000,
        security=_security(values),
    )


def _security(values: Mapping[str, Any]) -> Security | None:
    # Spark shows options in its plans and on its pages: a secret is never one of them.
    has_file = bool(values["secret_file"]) or not values["access_key"]
    names = ("access_key", "secret_file", "tls", "tls_ca", "tls_cert", "tls_key", "tls_server_name")
    secret = "" if has_file else os.environ.get(ENV_SECRET, "")
    try:
        security = Security(secret=secret, **{name: values[name] for name in names})
    except UsageError as error:
        raise ConfigError(f"format holdmq: {error}") from error
    return None if security == Security() else security
