"""The options of ``format("holdmq")``: one registry of names, meanings and checks.

Option names are case-insensitive, as everywhere in Spark; values are text.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

from holdmq.errors import ConfigError, UsageError
from holdmq.names.clusters import cluster_fault
from holdmq.names.tenants import tenant_fault
from holdmq.names.topics import topic_fault
from holdmq.rpc.security import Security
from holdmq.wire.column_headers import COLUMNS_TAGS_MAX
from holdmq.wire.replica_reads import ReplicaReads
from spark_streaming.source.columns import COLUMNS
from spark_streaming.source.offsets import LATEST, Offsets, check_offsets

SYSTEM_PREFIX: Final = "%"
MAX_RECORDS_DEFAULT: Final = 500_000
"""Records of one micro-batch: about a second's work of one core, so that a backlog is left in steps."""
ENV_SECRET: Final = "HOLDMQ_CLIENT__SECRET"  # noqa: S105 # a variable's name
READ_TIMEOUT_DEFAULT_MS: Final = 30_000
"""How long a task waits for a broker that is away: a restart takes seconds, and tasks are retried."""
SEND_TIMEOUT_DEFAULT_MS: Final = 30_000
"""How long a message waits for an absent broker, as for a reader."""


class Options(NamedTuple):
    """The checked options of one source; picklable."""

    registries: tuple[str, ...]
    topics: tuple[str, ...]
    tags: frozenset[str] | None
    starting: Offsets | None
    starting_latest: bool
    starting_ms: int | None
    ending: Offsets | None
    ending_ms: int | None
    max_records: int
    min_partitions: int
    max_partitions: int
    fail_on_data_loss: bool
    columns: tuple[str, ...]
    read_timeout_s: float
    security: Security | None
    read_replicas: ReplicaReads = ReplicaReads.ALLOW
    cluster: str = ""
    tenant: str = ""

    def is_wanted(self, topic: str) -> bool:
        """Return whether `topic` is read: it matches a name or pattern and is no system topic."""
        if topic.startswith(SYSTEM_PREFIX):
            return False
        return any(fnmatchcase(topic, pattern) for pattern in self.topics)


class WriteOptions(NamedTuple):
    """The checked options of one writer; picklable. `topic` "" = every row names its own."""

    registries: tuple[str, ...]
    topic: str
    send_timeout_s: float
    security: Security | None
    cluster: str = ""
    tenant: str = ""


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


def _cluster(value: str) -> str:
    cluster = value.strip()
    fault = cluster_fault(cluster)
    if fault is not None:
        raise ValueError(f"is no cluster: {fault}")
    return cluster


def _tenant(value: str) -> str:
    tenant = value.strip()
    fault = tenant_fault(tenant) if tenant else None
    if fault is not None:
        raise ValueError(f"is no tenant: {fault}")
    return tenant


def _topics(value: str) -> tuple[str, ...]:
    found = _texts(value)
    for topic in found:
        if topic.startswith(SYSTEM_PREFIX):
            raise ValueError(f"{topic!r} is a system topic, which is not read")
    return found


def _topic(value: str) -> str:
    topic = value.strip()
    fault = topic_fault(topic) if topic else None
    if fault:
        raise ValueError(f"is no topic: {fault}")
    return topic


def _tags(value: str) -> frozenset[str] | None:
    if value.strip() == "*":
        return None
    found = frozenset(_texts(value))
    if len(found) > COLUMNS_TAGS_MAX:
        raise ValueError(f"names more than {COLUMNS_TAGS_MAX} tags")
    return found


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


class _Position(NamedTuple):
    """One of three: the queues' latest offsets, offsets, or the store time from which on (ms)."""

    is_latest: bool = False
    offsets: Offsets | None = None
    store_ms: int | None = None


def _starting(value: str) -> _Position:
    return _Position(offsets={}) if value.strip().lower() == "earliest" else _ending(value)


def _ending(value: str) -> _Position:
    text = value.strip()
    if text.lower() == LATEST:
        return _Position(is_latest=True)
    try:
        if text.startswith("{"):
            return _Position(offsets=check_offsets(json.loads(text)))
        return _Position(store_ms=_time_ms(text))
    except ValueError as error:
        raise ValueError(f"is no known word, no time and no offsets: {error}") from error


def _time_ms(text: str) -> int:
    """A moment as ms since the epoch, the next whole one: what is stored in ms is then not before it."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("a time needs its zone, like 2026-01-31T12:00:00Z or …+01:00")
    return -((datetime(1970, 1, 1, tzinfo=UTC) - moment) // timedelta(milliseconds=1))


def _read_replicas(value: str) -> ReplicaReads:
    return ReplicaReads.of(value.strip().lower())


def _text(value: str) -> str:
    return value.strip()


_READ: Final[dict[str, _Option]] = {
    "registry": _Option("127.0.0.1:9876", _addresses, "host:port of registries, separated by commas"),
    "cluster": _Option(
        "", _cluster, "only brokers of this cluster, where registries know several; empty = those of all"
    ),
    "tenant": _Option("", _tenant, "the tenant in whose words topics are named; without it in whole names"),
    "topics": _Option("*", _topics, "topics, names or patterns (* ? [a-z]), separated by commas"),
    "tags": _Option("*", _tags, "exact tags, separated by commas; * = every message"),
    "starting_offsets": _Option(
        "earliest",
        _starting,
        "earliest, latest, a time like 2026-01-31T12:00:00Z, or offsets; queues that offsets do not name are "
        "read from their first",
    ),
    "ending_offsets": _Option(
        LATEST,
        _ending,
        "latest, a time like 2026-01-31T12:00:00Z (excluded), or offsets; batch reads only",
    ),
    "max_records_per_batch": _Option(str(MAX_RECORDS_DEFAULT), _count, "bound of one micro-batch"),
    "min_partitions": _Option("1", _count, "tasks of one batch at least, as long as each gets a record"),
    "max_partitions": _Option(None, _count, "tasks of one batch; the driver machine's cores unless set"),
    "fail_on_data_loss": _Option(
        "true", _flag, "fail when retention removed what was not read yet; else go on and log the count"
    ),
    "columns": _Option("*", _columns, "columns to read; leaving out body and texts is cheapest"),
    "read_timeout_ms": _Option(
        str(READ_TIMEOUT_DEFAULT_MS), _count, "how long a task waits for an absent broker before it fails"
    ),
    "read_replicas": _Option(
        "allow",
        _read_replicas,
        "whether copies of a broker that do not lead it may answer: allow (what is far behind), prefer "
        "(whatever they have) or never",
    ),
}
SECURITY: Final[dict[str, _Option]] = {
    "access_key": _Option("", _text, f"name of an access key; its secret is in secret_file or {ENV_SECRET}"),
    "secret_file": _Option("", _text, "file with the secret of access_key, on every machine that reads"),
    "tls": _Option("false", _flag, "TLS, with the system's authorities unless tls_ca is set"),
    "tls_ca": _Option("", _text, "PEM file of the authorities that may sign servers' certificates"),
    "tls_cert": _Option("", _text, "PEM file of the client certificate"),
    "tls_key": _Option("", _text, "PEM file of the key of tls_cert"),
    "tls_server_name": _Option("", _text, "name to look for in servers' certificates"),
}
"""Options of both: the fields of a Security, but for its secret."""
OPTIONS: Final = {**_READ, **SECURITY}
"""Every option of a reader: default (None = computed), check, meaning."""

WRITE_OPTIONS: Final[dict[str, _Option]] = {
    "registry": OPTIONS["registry"],
    "cluster": OPTIONS["cluster"],
    "tenant": OPTIONS["tenant"],
    "topic": _Option("", _topic, "the topic of rows without one of their own"),
    "send_timeout_ms": _Option(
        str(SEND_TIMEOUT_DEFAULT_MS), _count, "how long a message may take, all retries included"
    ),
    **SECURITY,
}
"""Every option of a writer."""

_SPARKS_OWN: Final = frozenset({"path", "checkpointlocation", "queryname"})


def parse_options(given: Mapping[str, str]) -> Options:
    """Check what the user gave a reader and fill in defaults; ConfigError names a wrong or unknown option."""
    values = _values(given, OPTIONS)
    starting, ending = values["starting_offsets"], values["ending_offsets"]
    most = values["max_partitions"] or max(os.cpu_count() or 1, values["min_partitions"])
    if values["min_partitions"] > most:
        raise ConfigError(
            f"format holdmq: min_partitions = {values['min_partitions']} is above max_partitions = {most}"
        )
    return Options(
        registries=values["registry"],
        topics=values["topics"],
        tags=values["tags"],
        starting=starting.offsets,
        starting_latest=starting.is_latest,
        starting_ms=starting.store_ms,
        ending=ending.offsets,
        ending_ms=ending.store_ms,
        max_records=values["max_records_per_batch"],
        min_partitions=values["min_partitions"],
        max_partitions=most,
        fail_on_data_loss=values["fail_on_data_loss"],
        columns=values["columns"],
        read_timeout_s=values["read_timeout_ms"] / 1000,
        security=_security(values),
        read_replicas=values["read_replicas"],
        cluster=values["cluster"],
        tenant=values["tenant"],
    )


def parse_write_options(given: Mapping[str, str]) -> WriteOptions:
    """The same for a writer."""
    values = _values(given, WRITE_OPTIONS)
    return WriteOptions(
        registries=values["registry"],
        topic=values["topic"],
        send_timeout_s=values["send_timeout_ms"] / 1000,
        security=_security(values),
        cluster=values["cluster"],
        tenant=values["tenant"],
    )


def _values(given: Mapping[str, str], options: Mapping[str, _Option]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name in given:
        if name.lower() not in options and name.lower() not in _SPARKS_OWN:
            raise ConfigError(f"format holdmq: unknown option {name!r}; there are {', '.join(options)}")
    lowered = {name.lower(): value for name, value in given.items()}
    for name, option in options.items():
        text = lowered.get(name, option.default)
        try:
            values[name] = None if text is None else option.check(text)
        except ValueError as error:
            raise ConfigError(
                f"format holdmq: option {name} = {text!r} {error}; it takes {option.meaning}"
            ) from error
    return values


def _security(values: Mapping[str, Any]) -> Security | None:
    # Spark shows options in its plans and on its pages: a secret is never one of them.
    has_file = bool(values["secret_file"]) or not values["access_key"]
    secret = "" if has_file else os.environ.get(ENV_SECRET, "")
    try:
        security = Security(secret=secret, **{name: values[name] for name in SECURITY})
    except UsageError as error:
        raise ConfigError(f"format holdmq: {error}") from error
    return None if security == Security() else security
