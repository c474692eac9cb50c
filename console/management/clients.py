"""The SDK's classes that `holdmq` commands use, over one table of routes."""

from __future__ import annotations

from contextlib import AsyncExitStack

from holdmq.client.admin import Admin
from holdmq.client.bans import BanAdmin
from holdmq.client.configurations import ConfigAdmin
from holdmq.client.connected import ClientAdmin
from holdmq.client.dead_letters import DeadLetters
from holdmq.client.groups import GroupAdmin
from holdmq.client.producer import Producer
from holdmq.client.queries import Messages
from holdmq.client.quotas import QuotaAdmin
from holdmq.client.retained import RetainedAdmin
from holdmq.client.sessions import SessionAdmin
from holdmq.client.tables import Table
from holdmq.client.tenants import TenantAdmin

CALL_TIMEOUT_S = 10.0
"""A page does not wait longer for a broker; what takes longer is asked again."""


class ClusterClients:
    """Asks the brokers that `admin` knows. `open` after `admin` is, `close` before it."""

    def __init__(self, admin: Admin) -> None:
        routes = admin.routes
        self.admin = admin
        self.groups = GroupAdmin(routes=routes, timeout_s=CALL_TIMEOUT_S)
        self.sessions = SessionAdmin(routes=routes, timeout_s=CALL_TIMEOUT_S)
        self.connected = ClientAdmin(routes=routes, timeout_s=CALL_TIMEOUT_S)
        self.configurations = ConfigAdmin(routes=routes, timeout_s=CALL_TIMEOUT_S)
        self.bans = BanAdmin(routes=routes, timeout_s=CALL_TIMEOUT_S)
        self.quotas = QuotaAdmin(routes=routes, timeout_s=CALL_TIMEOUT_S)
        self.tenants = TenantAdmin(routes=routes, timeout_s=CALL_TIMEOUT_S)
        self.messages = Messages(routes=routes, timeout_s=CALL_TIMEOUT_S)
        self.letters = DeadLetters(routes=routes, timeout_s=CALL_TIMEOUT_S)
        self.retained = RetainedAdmin(routes=routes, timeout_s=CALL_TIMEOUT_S)
        self.producer = Producer(routes=routes, send_timeout_s=CALL_TIMEOUT_S)
        self._stack = AsyncExitStack()

    async def open(self) -> None:
        """Begin using the routes; returns at once."""
        for one in (
            self.groups, self.sessions, self.connected, self.configurations, self.bans, self.quotas,
            self.tenants, self.messages, self.letters, self.retained, self.producer,
        ):  # fmt: skip
            await self._stack.enter_async_context(one)

    async def close(self) -> None:
        """End what is under way."""
        await self._stack.aclose()

    def table(self, name: str) -> Table:
        """Return a table's rows, over the same routes. UsageError for what is no name."""
        return Table(name, routes=self.admin.routes)
