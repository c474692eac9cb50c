"""`holdmq broker`: parses what it is told, and lives the lives of its shards."""

from __future__ import annotations

import asyncio
import signal

from broker.alerts.channels import refuse_open_secrets
from broker.app.lives import Lives
from broker.app.metric_help import BROKER, REPLICATION, STORE
from broker.app.replicas import ReplicaProcess
from broker.app.takeover import Takeovers
from holdmq.config.model import Config
from holdmq.coordination.counted import HELP as COORDINATION
from holdmq.rpc.auth import HELP, ServerSecurity
from holdmq.service.interpreter import prepare_interpreter, work_in_batches
from holdmq.service.numbers import Numbers, NumberSource
from holdmq.service.process import Service
from holdmq.service.telemetry import METRICS


async def main(config: Config, service: Service) -> None:
    """Run one broker until `service.stopping`; raises HoldMQError when it cannot start."""
    work_in_batches()
    security = ServerSecurity.of(config, "broker")
    config.alarms.check()
    refuse_open_secrets(config.alarms)
    lives = Lives(config, service, security)
    replica = ReplicaProcess(config, service, lives, security) if config.replication.replicas else None
    sources = [
        NumberSource("holdmq_rpc_", HELP, security.numbers),
        NumberSource("holdmq_broker_", BROKER, lives.broker_numbers),
        NumberSource("holdmq_store_", STORE, lives.store_numbers),
    ]
    if replica is not None:
        sources += [
            NumberSource("holdmq_replication_", REPLICATION, replica.numbers),
            NumberSource("holdmq_coordination_", COORDINATION, replica.coordination_numbers),
        ]
    METRICS.register(Numbers(*sources))
    prepare_interpreter()
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, security.reload_soon)
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
