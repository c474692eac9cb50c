"""Quotas as a table of which every broker is to have all rows (`broker.joining`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any, Final

from broker.kernel.durable import durable
from broker.kernel.spread_table import Taken
from broker.quotas.requests import Quotas
from holdmq.errors import Code, RemoteError, WireError
from holdmq.quotas.limits import check_quota, parse_principal, principal_of
from holdmq.wire.header import rows
from holdmq.wire.quota_headers import QuotaRow

QUOTAS: Final = "quotas"


class SpreadQuotas:
    """All quotas, by the principals that they are for."""

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas
        self._rows = quotas.table.rows

    @property
    def version(self) -> int:
        return self._quotas.table.version

    def names(self) -> Collection[str]:
        return self._rows.keys()

    def settings_of(self, name: str) -> dict[str, Any] | None:
        quota = self._rows.get(name)
        return None if quota is None else quota._asdict()

    def has(self, name: str) -> bool:
        return self._quotas.is_known(name)

    async def take(self, found: Mapping[str, Mapping[str, Any]]) -> Taken:
        """Have these quotas, as they are elsewhere."""
        self._quotas.table.check_ready()
        taken: list[str] = []
        refused = ""
        for name, settings in found.items():
            if self._quotas.is_known(name):
                continue
            try:
                quota = _quota_of(name, settings)
                await durable(partial(self._quotas.put, quota))
            except (RemoteError, WireError) as error:
                refused = str(error)
            else:
                taken.append(name)
        return Taken(taken, refused)

    async def drop_unused(self, name: str) -> bool:
        """Remove a quota: nobody misses one that was taken away."""
        self._quotas.table.check_ready()
        await durable(partial(self._quotas.drop, *parse_principal(name)))
        return True


def _quota_of(name: str, settings: Mapping[str, Any]) -> QuotaRow:
    (quota,) = rows(QuotaRow, [[settings.get(field, "") for field in QuotaRow._fields]])
    check_quota(quota)
    if principal_of(quota.kind, quota.name) != name:
        raise RemoteError(Code.LIMIT_EXCEEDED, f"the quota of {name!r} says another name")
    return quota
