"""`holdmq broker`: parses what it is told, and lives the lives of its shards."""

from __future__ import annotations

import asyncio
import signal

from broker.app.lives import Lives
from broker.app.metric_help import BROKER, REPLICATION, STORE
from broker.app.reconfiguring import ROOMS
from broker.app.replicas import ReplicaProcess
from broker.app.takeover import Takeovers
from holdmq.alarms.channels import refuse_open_secrets
from holdmq.config.changes import BROKER as BROKER_SERVICE
from holdmq.config.changes import Adjustment, Reloaded
from holdmq.config.model import Config
from holdmq.coordination.counted import HELP as COORDINATION
from holdmq.rpc.auth import HELP, ServerSecurity
from holdmq.service.interpreter import prepare_interpreter, work_in_batches
from holdmq.service.numbers import Numbers, NumberSource
from holdmq.service.process import Service
from holdmq.service.reloading import PATH, Reloading
from holdmq.service.telemetry import METRICS


async def main(config: Config, service: Service) -> None:
    """Run one broker until `service.stopping`; raises HoldMQError when it cannot start."""
    work_in_batches()
    security = ServerSecurity.of(config, "broker")
    check(config)

    async def reload() -> Reloaded:
        # It adjusts the rooms of these lives, which let others ask for it.
        return await reloading.reload()

    lives = Lives(config, service, security, reload)
    replica = ReplicaProcess(config, service, lives, security) if config.replication.replicas else None
    here = lives if replica is None else replica
    sources = [
        NumberSource("holdmq_rpc_", HELP, security.numbers),
        NumberSource("holdmq_broker_", BROKER, here.broker_numbers),
        NumberSource("holdmq_store_", STORE, here.store_numbers),
    ]
    if replica is not None:
        sources += [
            NumberSource("holdmq_replication_", REPLICATION, replica.numbers),
            NumberSource("holdmq_coordination_", COORDINATION, replica.coordination_numbers),
        ]
    METRICS.register(Numbers(*sources))
    prepare_interpreter()
    adjustments = [Adjustment.of(row.section, row.keys, lives.adjust(row.room)) for row in ROOMS]
    if replica is not None:
        adjustments.append(Adjustment.of("alarms", "interval_s cooldown_s", replica.reconfigure))
    reloading = Reloading(BROKER_SERVICE, config, adjustments, check)
    service.controls[PATH] = reloading.control

    def hung_up() -> None:
        security.reload_soon()
        reloading.soon()

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hung_up)
    if replica is not None:
        await replica.live()
        return
    takeovers = (
        Takeovers(config, lives) if config.storage.engine == "kv" and config.storage.kv.takeover else None
    )
    try:
        await lives.live_at_home(takeovers)
    finally:
        if takeovers is not None:
            await takeovers.close()


def check(config: Config) -> None:
    """Refuse what a broker does not start with; blocking. Raises ConfigError."""
    config.alarms.check()
    refuse_open_secrets(config.alarms)
    config.rpc_anonymous_allowed("broker")
