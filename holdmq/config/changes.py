"""What of the configuration a running process takes over, and what waits for its next start.

A process that is told to read its configuration again compares it with the one in force, key by key
(`LiveSettings`). A key of RELOADED for this service is applied; one that differs and is not there waits for a
restart, and stays as it is. Keys of sections that the service does not read (READ) are others' affair.

What a key needs to change while the process lives is a room's own affair: it has a method ``reconfigure``,
and one table per service says which keys go to which (`Adjustment`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from holdmq.config.model import Config
from holdmq.config.section import Section

REGISTRY: Final = "registry"
BROKER: Final = "broker"
GATEWAY: Final = "gateway"
CONSOLE: Final = "console"


def _keys(section: str, names: str) -> frozenset[str]:
    return frozenset(f"{section}.{name}" for name in names.split())


_LOG: Final = _keys("log", "level")

RELOADED: Final[Mapping[str, frozenset[str]]] = {
    REGISTRY: _LOG
    | _keys("registry", "scan_interval_s broker_expiry_s")
    | _keys("alarms", "interval_s cooldown_s lost_after_s lost_forget_s"),
    BROKER: _LOG
    | _keys(
        "broker",
        "auto_create_topics topics_max topic_queues_default hide_grace_s auto_create_groups groups_max "
        "group_members_max message_bytes_min retained_max retained_max_bytes retained_message_max_bytes "
        "queue_lease_s offset_save_interval_s offset_commit register_interval_s",
    )
    | _keys(
        "storage",
        "retention_age_s retention_bytes retention_segments delete group_expiry_s disk_early_percent "
        "disk_forced_percent disk_refuse_percent retention_interval_ms",
    )
    | _keys(
        "alarms",
        "interval_s cooldown_s backlog backlog_topics backlog_total dead_letters lost_records replica_lag_s "
        "copies_missing_s lost_after_s",
    ),
    GATEWAY: _LOG
    | _keys(
        "gateway",
        "connections_max unauthenticated_s unauthenticated_max_bytes keepalive_max_s inflight_max "
        "filters_per_client_max plus_levels_per_client_max client_id_max_bytes session_expiry_max_s "
        "response_prefix server_reference connect_rate_max publish_rate_max publish_bytes_rate_max "
        "mqtt_topics_max flapping_connects_max flapping_window_s flapping_ban_s overload_lag_ms "
        "overload_memory_bytes drain_rate drain_is_final shed_above shed_rate log_connections "
        "sys_interval_s",
    ),
    CONSOLE: _LOG
    | _keys("console", "session_idle_s session_max_s sql_seconds_max sql_rows_max sql_result_max_bytes"),
}
"""Service → the keys that it takes over while it runs. Each is in the service's table of adjustments."""

READ: Final[Mapping[str, frozenset[str]]] = {
    REGISTRY: frozenset({"cluster", "registry", "security", "alarms", "log", "client"}),
    BROKER: frozenset(
        {"cluster", "broker", "storage", "replication", "coordination", "security", "alarms", "log", "client"}
    ),
    GATEWAY: frozenset({"gateway", "access", "security", "log", "client"}),
    CONSOLE: frozenset({"console", "stats", "security", "log", "client"}),
}
"""Service → the sections that it reads."""


def is_reloaded(key: str) -> bool:
    """Return whether any service takes `key` over while it runs."""
    return any(key in keys for keys in RELOADED.values())


class Adjustment(NamedTuple):
    """What has some keys of a running process changed; `apply` gets a configuration that is in force then.

    It is called on the process's event loop (the gateway's parent: on its only thread), must not wait, and
    must not fail: the values have been checked.
    """

    keys: frozenset[str]
    apply: Callable[[Config], None]

    @classmethod
    def of(cls, section: str, names: str, apply: Callable[[Config], None]) -> Adjustment:
        """The keys of a section, by their names with spaces between."""
        return cls(_keys(section, names), apply)


class Reloaded(NamedTuple):
    """What came of reading the configuration again: keys, sorted."""

    changed: list[str]
    """Keys whose new values are in force."""
    waiting: list[str]
    """Keys with other values than those in force, which count from the next start on."""


class LiveSettings:
    """The configuration in force in one process, and how to change it.

    Raises TypeError when `adjustments` are not for exactly the keys that RELOADED names for `service`.
    """

    def __init__(self, service: str, config: Config, adjustments: Sequence[Adjustment]) -> None:
        found: set[str] = set()
        for adjustment in adjustments:
            found |= adjustment.keys
        if found != RELOADED[service]:
            raise TypeError(
                f"{service}: keys without an adjustment, or not reloaded: {sorted(found ^ RELOADED[service])}"
            )
        self._service = service
        self._adjustments = adjustments
        self.in_force = config

    def take_over(self, read: Config) -> Reloaded:
        """Apply what differs in `read`, which has been checked, and may be applied."""
        different = differences(self._service, self.in_force, read)
        changed = [key for key in different if key in RELOADED[self._service]]
        self.apply({key: read.value_of(key) for key in changed})
        return Reloaded(changed, [key for key in different if key not in changed])

    def apply(self, values: Mapping[str, Any]) -> None:
        """Put values in force; every key is one of RELOADED."""
        if not values:
            return
        self.in_force = with_values(self.in_force, values)
        for adjustment in self._adjustments:
            if not adjustment.keys.isdisjoint(values):
                adjustment.apply(self.in_force)


def differences(service: str, old: Config, new: Config) -> list[str]:
    """Return the keys of the service's sections whose values are not the same, sorted."""
    found: list[str] = []
    for section in READ[service]:
        found += _differences(section, getattr(old, section), getattr(new, section))
    return sorted(found)


def _differences(name: str, old: Section, new: Section) -> Iterable[str]:
    for field in type(old).model_fields:
        key, before, after = f"{name}.{field}", getattr(old, field), getattr(new, field)
        if isinstance(before, Section):
            yield from _differences(key, before, after)
        elif before != after:
            yield key


def with_values(config: Config, values: Mapping[str, Any]) -> Config:
    """Return `config` with other values for some keys, as ``section.key``; its sources stay."""
    of_section: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        section, _, name = key.partition(".")
        of_section.setdefault(section, {})[name] = value
    changed = {
        section: getattr(config, section).model_copy(update=update) for section, update in of_section.items()
    }
    return config.model_copy(update=changed)
