"""Which keys of a running gateway go to which rooms of a worker; the parent says their values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdmq.config.changes import GATEWAY, Adjustment, LiveSettings
from holdmq.service.reloading import LOG_LEVEL

if TYPE_CHECKING:
    from gateway.deliver.system_topics import SystemTopics
    from gateway.ground.limits import SessionLimits
    from gateway.observe.connection_log import ConnectionLog
    from gateway.protect.gate import AdmissionGate
    from gateway.protect.metering import Metering
    from gateway.protect.overload import OverloadWatch
    from gateway.publish.topics import ClientTopics
    from gateway.worker.draining import Draining
    from gateway.worker.shedding import HotWorkerRelief
    from holdmq.config.model import Config


def settings_of(
    config: Config,
    limits: SessionLimits,
    gate: AdmissionGate,
    metering: Metering,
    overload: OverloadWatch,
    topics: ClientTopics,
    relief: HotWorkerRelief,
    draining: Draining,
    connection_log: ConnectionLog,
    system: SystemTopics,
) -> LiveSettings:
    """Return the settings of one worker, which began with `config`."""

    def rates(new: Config) -> None:
        metering.reconfigure(new.gateway.publish_rate_max, new.gateway.publish_bytes_rate_max)

    def topics_max(new: Config) -> None:
        topics.mqtt_topics_max = new.gateway.mqtt_topics_max

    def logs(new: Config) -> None:
        connection_log.is_on = new.gateway.log_connections

    table = {
        "unauthenticated_s keepalive_max_s inflight_max filters_per_client_max plus_levels_per_client_max "
        "client_id_max_bytes session_expiry_max_s response_prefix server_reference": (
            lambda new: limits.reconfigure(new.gateway)
        ),
        "connections_max unauthenticated_max_bytes connect_rate_max flapping_connects_max "
        "flapping_window_s flapping_ban_s server_reference drain_is_final": (
            lambda new: gate.reconfigure(new.gateway)
        ),
        "publish_rate_max publish_bytes_rate_max": rates,
        "overload_lag_ms overload_memory_bytes": lambda new: overload.reconfigure(new.gateway),
        "mqtt_topics_max": topics_max,
        "shed_above shed_rate": lambda new: relief.reconfigure(new.gateway),
        "drain_rate": lambda new: draining.reconfigure(new.gateway),
        "log_connections": logs,
        "sys_interval_s": lambda new: system.reconfigure(new.gateway.sys_interval_s),
    }
    found = [Adjustment.of("gateway", names, apply) for names, apply in table.items()]
    return LiveSettings(GATEWAY, config, [*found, LOG_LEVEL])
