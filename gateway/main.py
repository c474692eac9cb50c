"""`holdmq gateway`: worker processes that share one MQTT port."""

from __future__ import annotations

from gateway.access.checking import check_access
from gateway.parent.supervisor import WorkerSupervisor
from holdmq.config.model import Config
from holdmq.service.process import guard


def run(config: Config) -> int:
    """Run the gateway until SIGTERM or SIGINT and return the exit code."""

    def serve() -> None:
        # Refuses a listener that everybody reaches and nobody chose.
        config.access.anonymous_allowed(config.gateway)
        check_access(config)
        WorkerSupervisor(config).run()

    return guard("gateway", config, serve)
