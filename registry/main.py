"""Starts and ends the registry's process."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from holdmq.alarms.channels import refuse_open_secrets
from holdmq.config.changes import REGISTRY, Adjustment, Reloaded
from holdmq.config.model import Config
from holdmq.errors import StartupError
from holdmq.files.atomic_file import AtomicFile
from holdmq.files.private_directory import close_to_others
from holdmq.rpc.auth import HELP as RPC_HELP
from holdmq.rpc.auth import ServerSecurity
from holdmq.rpc.config_reload import ConfigReload
from holdmq.rpc.security import Security
from holdmq.service.build import running_build
from holdmq.service.numbers import Numbers, NumberSource
from holdmq.service.process import Service, listen_error
from holdmq.service.reloading import PATH, Reloading
from holdmq.service.telemetry import METRICS
from registry.server import RegistryServer
from registry.watching import HELP, ProcessWatch


async def main(config: Config, service: Service) -> None:
    """Serve the tables on ``registry.bind:registry.port`` until the process is told to stop."""
    section = config.registry
    security = ServerSecurity.of(config, "registry")

    async def reload() -> Reloaded:
        # It adjusts the server, which lets others ask for it.
        return await reloading.reload()

    await asyncio.to_thread(_check, config)
    watch = ProcessWatch(
        config.alarms,
        config.registries(),
        f"{section.bind}:{section.port}",
        Security.of(config),
        AtomicFile(Path(section.data_dir) / "toldAlarms.json"),
    )
    server = RegistryServer(
        config.cluster.name,
        section.scan_interval_s,
        section.broker_expiry_s,
        data_dir=Path(section.data_dir),
        reload=ConfigReload(REGISTRY, f"{section.bind}:{section.port}", reload),
        roster=watch.roster,
        watch_routes=watch.routes(),
    )
    await asyncio.to_thread(close_to_others, Path(section.data_dir), "orderTopic.json")
    await asyncio.to_thread(server.load, section.accept_backup)
    await asyncio.to_thread(watch.load, section.accept_backup)
    server.rpc.security = security
    METRICS.register(
        Numbers(
            NumberSource("holdmq_rpc_", RPC_HELP, security.numbers),
            NumberSource("holdmq_registry_", HELP, watch.numbers),
        )
    )
    scanning_keys = Adjustment.of(
        "registry",
        "scan_interval_s broker_expiry_s",
        lambda c: server.reconfigure(c.registry.scan_interval_s, c.registry.broker_expiry_s),
    )
    watching_keys = Adjustment.of(
        "alarms", "interval_s cooldown_s lost_after_s lost_forget_s", lambda c: watch.reconfigure(c.alarms)
    )
    reloading = Reloading(REGISTRY, config, [scanning_keys, watching_keys], _check)
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
            watch.start()
            service.ready(lambda: (True, "ready"))
            service.log.info("registry serves", bind=section.bind, port=port, build=running_build())
            await service.stopping.wait()
            scanning.cancel()
            await watch.close(list(server.rpc.connections))
    finally:
        await server.close()


def _check(config: Config) -> None:
    """Refuse what a registry does not start with; blocking. Raises ConfigError."""
    config.alarms.check()
    refuse_open_secrets(config.alarms)
    config.rpc_anonymous_allowed("registry")
