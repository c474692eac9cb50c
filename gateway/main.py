"""`holdmq gateway`: worker processes that share one MQTT port."""

from __future__ import annotations

from gateway.supervisor import Supervisor
from holdmq.config import Config
from holdmq.process import guard


def run(config: Config) -> int:
    """Run the gateway until SIGTERM or SIGINT and return the exit code."""

    def serve() -> None:
        config.access.anonymous_allowed(config.gateway)  # refuses a listener that everybody reaches and nobody chose
        Supervisor(config).run()

    return guard("gateway", config, serve)
