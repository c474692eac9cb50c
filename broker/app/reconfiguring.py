"""Which keys of a running broker go to which of its rooms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from broker.app.compose import Broker
from broker.app.registration import Registration
from holdmq.config.model import Config

BrokerAdjustment = Callable[[Config, Broker, Registration | None], None]
"""Gives a room of one broker its keys of a configuration; a broker that starts has no registration yet."""


class RoomKeys(NamedTuple):
    """Keys of a section, with spaces between, and what they are given to."""

    section: str
    keys: str
    room: BrokerAdjustment


def _topics(config: Config, broker: Broker, _registration: Registration | None) -> None:
    keys = config.broker
    broker.topics.reconfigure(
        keys.auto_create_topics, keys.hide_grace_s, keys.topics_max, keys.topic_queues_default
    )


def _groups(config: Config, broker: Broker, _registration: Registration | None) -> None:
    broker.groups.reconfigure(config.broker)


def _messages(config: Config, broker: Broker, _registration: Registration | None) -> None:
    broker.bounds.reconfigure(config.broker.message_bytes_min)


def _retained(config: Config, broker: Broker, _registration: Registration | None) -> None:
    broker.retained.reconfigure(config.broker)


def _registering(config: Config, _broker: Broker, registration: Registration | None) -> None:
    if registration is not None:
        registration.reconfigure(config.broker.register_interval_s)


def _retention(config: Config, broker: Broker, _registration: Registration | None) -> None:
    broker.store.retention.reconfigure(config.storage)


def _alarms(config: Config, broker: Broker, _registration: Registration | None) -> None:
    broker.alarms.reconfigure(config.alarms)


ROOMS: Final = (
    RoomKeys("broker", "auto_create_topics hide_grace_s topics_max topic_queues_default", _topics),
    RoomKeys(
        "broker",
        "auto_create_groups groups_max group_members_max queue_lease_s offset_save_interval_s offset_commit",
        _groups,
    ),
    RoomKeys("broker", "retained_max retained_max_bytes retained_message_max_bytes", _retained),
    RoomKeys("broker", "message_bytes_min", _messages),
    RoomKeys("broker", "register_interval_s", _registering),
    RoomKeys(
        "storage",
        "retention_age_s retention_bytes retention_segments delete group_expiry_s disk_early_percent "
        "disk_forced_percent disk_refuse_percent retention_interval_ms",
        _retention,
    ),
    RoomKeys(
        "alarms",
        "interval_s cooldown_s backlog backlog_topics backlog_total dead_letters lost_records replica_lag_s "
        "copies_missing_s lost_after_s",
        _alarms,
    ),
)
"""Every key that a broker takes over while it runs, but for the log's level."""
