"""Services told from afar to read their configuration again. See docs/operating.md."""

from __future__ import annotations

import secrets
from typing import Final, NamedTuple

from holdmq.client.cluster_calls import AdminCalls
from holdmq.errors import HoldMQError
from holdmq.rpc.client import Client
from holdmq.rpc.security import Security
from holdmq.wire.codes import RequestCode
from holdmq.wire.config_headers import (
    ConfigReloadRequest,
    ConfigReloadResponse,
    GatewayReloadRequest,
    GatewayReloadResponse,
    ReloadedRow,
    merged_reloads,
)
from holdmq.wire.header import rows

RELOAD_TIMEOUT_S: Final = 10.0
"""Files are read and checked whole before the answer."""


class GatewaysReloaded(NamedTuple):
    """What came of it at each gateway, and workers that did not answer."""

    rows: list[ReloadedRow]
    silent: list[str]


class ConfigAdmin(AdminCalls):
    """Has services reload: `async with ConfigAdmin(["host:9876"]) as configurations`, on one event loop.

    Takes the role admin where there are access keys. A configuration that is wrong changes nothing, and the
    row's `error` says what is wrong. Every call raises TransportError without an answer.
    """

    KIND = "configurations"
    TIMEOUT_S = RELOAD_TIMEOUT_S

    async def reload_broker(self, broker: str) -> ReloadedRow:
        """Have a broker reload, by its name: the replica that leads it. TransportError for an unknown one."""
        await self.routes.refresh()
        reply = await self.call(RequestCode.CONFIG_RELOAD, broker, ConfigReloadRequest())
        return rows(ReloadedRow, reply.header(ConfigReloadResponse).reloaded)[0]

    async def reload_gateways(self, gateway: str) -> GatewaysReloaded:
        """Have gateways reload whose host begins with `gateway`, or fits it as a pattern (* = all)."""
        found: list[ReloadedRow] = []
        workers: list[str] = []
        silent: dict[str, None] = {}
        errors: list[HoldMQError] = []
        brokers = await self._live_brokers()
        for broker in brokers:
            request = GatewayReloadRequest(gateway, workers)
            try:
                reply = await self.call(RequestCode.GATEWAY_RELOAD, broker, request)
                answer = reply.header(GatewayReloadResponse)
            except HoldMQError as error:
                errors.append(error)
                continue
            found += rows(ReloadedRow, answer.reloaded)
            workers += answer.workers
            silent.update(dict.fromkeys(answer.silent))
        if len(errors) == len(brokers):
            raise errors[0]
        return GatewaysReloaded(merged_reloads(found), list(silent))


async def reload_registry(address: str, security: Security | None) -> ReloadedRow:
    """Have the registry at host:port reload. Raises TransportError, RemoteError."""
    client = Client(address, "console", f"configurations-{secrets.token_hex(8)}", security=security)
    client.start()
    try:
        reply = await client.call(RequestCode.CONFIG_RELOAD, ConfigReloadRequest(), RELOAD_TIMEOUT_S)
    finally:
        await client.close()
    return rows(ReloadedRow, reply.header(ConfigReloadResponse).reloaded)[0]
