"""Starts and ends the registry's process."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from holdmq.config.changes import REGISTRY, Adjustment, Reloaded
from holdmq.config.model import Config
from holdmq.errors import StartupError
from holdmq.files.private_directory import close_to_others
from holdmq.rpc.auth import HELP, ServerSecurity
from holdmq.rpc.config_reload import ConfigReload
from holdmq.service.build import running_build
from holdmq.service.numbers import Numbers, NumberSource
from holdmq.service.process import Service, listen_error
from holdmq.service.reloading import PATH, Reloading
from holdmq.service.telemetry import METRICS
from registry.server import RegistryServer


async def main(config: Config, service: Service) -> None:
    """Serve the tables on ``registry.bind:registry.port`` until the process is told to stop."""
    section = config.registry
    security = ServerSecurity.of(config, "registry")

    async def reload() -> Reloaded:
        # It adjusts the server, which lets others ask for it.
        return await reloading.reload()

    server = RegistryServer(
        config.cluster.name,
        section.scan_interval_s,
        section.broker_expiry_s,
        data_dir=Path(section.data_dir),
        reload=ConfigReload(REGISTRY, f"{section.bind}:{section.port}", reload),
    )
    await asyncio.to_thread(close_to_others, Path(section.data_dir), "orderTopic.json")
    await asyncio.to_thread(server.load, section.accept_backup)
    server.rpc.security = security
    METRICS.register(Numbers(NumberSource("holdmq_rpc_", HELP, security.numbers)))
    scanning_keys = Adjustment.of(
        "registry",
        "scan_interval_s broker_expiry_s",
        lambda c: server.reconfigure(c.registry.scan_interval_s, c.registry.broker_expiry_s),
    )
    reloading = Reloading(REGISTRY, config, [scanning_keys], _check)
    service.controls[PATH] = reloading.control

    def hung_up() -> None:
        security.reload_soon()
        reloading.soon()

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hung_up)
    try:
        port = await server.listen(section.bind, section.port)
    except StartupError as error:
        if isinstance(error.__cause__, OSError):
            raise listen_error(error.__cause__, "registry.port", section.bind, section.port) from error
        raise
    try:
        async with asyncio.TaskGroup() as tasks:
            scanning = tasks.create_task(server.scan(), name="registry scan")
            service.ready(lambda: (True, "ready"))
            service.log.info("registry serves", bind=section.bind, port=port, build=running_build())
            await service.stopping.wait()
            scanning.cancel()
    finally:
        await server.close()


def _check(config: Config) -> None:
    """Refuse what a start would."""
    config.rpc_anonymous_allowed("registry")
