"""Quotas read and checked, and found by whom they are for, sans-IO."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgpack

from holdmq.errors import Code, RemoteError, WireError
from holdmq.wire.header import rows
from holdmq.wire.quota_headers import EVERYBODY, KEY, KINDS, TENANT, USER, QuotaRow
from holdmq.wire.untrusted import unpack

NAME_MAX_BYTES: Final = 1_024
"""Of who has a quota: longer than any access key, tenant or sensible user name."""
BY_MAX: Final = 200
LIMIT_MAX: Final = (1 << 53) - 1
"""The largest limit: a browser shows it exactly."""
LIMITS: Final = (
    "publish_rate",
    "publish_bytes_rate",
    "topics",
    "sessions",
    "connections",
    "kept_bytes",
)
"""What a quota may limit, by the names of its fields."""
_OF_KIND: Final = {
    TENANT: LIMITS,
    USER: ("publish_rate", "publish_bytes_rate", "sessions", "connections"),
    KEY: ("publish_rate", "publish_bytes_rate", "connections"),
}
"""Topics, and what is kept in them, are a tenant's by their names: a user or key has none of its own."""


def principal_of(kind: str, name: str) -> str:
    """Return how one who has a quota is named: `tenant:acme`, `user:ada`, `key:orders`."""
    return f"{kind}:{name}"


def parse_principal(text: str) -> tuple[str, str]:
    """Return kind and name of `KIND:NAME`. Raises RemoteError for anything else."""
    kind, colon, name = text.partition(":")
    if not colon or kind not in KINDS or not name:
        kinds = ", ".join(f"{known}:NAME" for known in KINDS)
        raise RemoteError(Code.LIMIT_EXCEEDED, f"a quota is for one of {kinds}, not for {text[:80]!r}")
    return kind, name


def check_quota(quota: QuotaRow) -> None:
    """Raise RemoteError for what cannot be a quota."""
    parse_principal(principal_of(quota.kind, quota.name))
    if len(quota.name.encode()) > NAME_MAX_BYTES or len(quota.by) > BY_MAX:
        raise RemoteError(
            Code.LIMIT_EXCEEDED,
            f"who has a quota is named in at most {NAME_MAX_BYTES} bytes, who gives it in {BY_MAX}",
        )
    for limit in LIMITS:
        value = getattr(quota, limit)
        if not 0 <= value <= LIMIT_MAX:
            raise RemoteError(Code.LIMIT_EXCEEDED, f"{limit} {value} is not between 0 and {LIMIT_MAX}")
        if value and limit not in _OF_KIND[quota.kind]:
            raise RemoteError(
                Code.LIMIT_EXCEEDED,
                f"a {quota.kind} has no limit of {limit}; it has {', '.join(_OF_KIND[quota.kind])}",
            )
    if not has_limit(quota):
        raise RemoteError(Code.LIMIT_EXCEEDED, "a quota without a limit is none: remove it instead")


def has_limit(quota: QuotaRow) -> bool:
    """Whether anything is limited."""
    return any(getattr(quota, limit) for limit in LIMITS)


def encode_quota(quota: QuotaRow) -> bytes:
    """Return a quota as its row has it."""
    packed: bytes = msgpack.packb(tuple(quota))
    return packed


def decode_quota(value: bytes) -> QuotaRow:
    """Return the quota of a row. Raises WireError."""
    found = unpack(value, "a quota")
    if not isinstance(found, list):
        raise WireError("a quota is malformed")
    return rows(QuotaRow, [found])[0]


class QuotaBook:
    """All quotas, by whom they are for; `has_rates` and `has_counts` say whether there is one at all."""

    def __init__(self) -> None:
        self.has_rates = False
        self.has_counts = False
        self._of: dict[str, QuotaRow] = {}

    def __len__(self) -> int:
        return len(self._of)

    def __iter__(self) -> Iterator[QuotaRow]:
        return iter(self._of.values())

    def put(self, quota: QuotaRow) -> None:
        """Have this quota, in place of the one of the same."""
        self._of[principal_of(quota.kind, quota.name)] = quota
        self._look()

    def drop(self, kind: str, name: str) -> bool:
        """Have none of this one any more; whether there was one."""
        was_present = self._of.pop(principal_of(kind, name), None) is not None
        self._look()
        return was_present

    def replace(self, quotas: Iterable[QuotaRow]) -> None:
        """Have these and no others."""
        self._of = {principal_of(quota.kind, quota.name): quota for quota in quotas}
        self._look()

    def own(self, principal: str) -> QuotaRow | None:
        """The quota that was set for exactly this one."""
        return self._of.get(principal)

    def of(self, principal: str) -> QuotaRow | None:
        """The quota of a principal: its own, else the one of everybody of its kind; None = it has none."""
        found = self._of.get(principal)
        if found is None and self._of:
            found = self._of.get(principal_of(principal.partition(":")[0], EVERYBODY))
        return found

    def _look(self) -> None:
        quotas = self._of.values()
        self.has_rates = any(quota.publish_rate or quota.publish_bytes_rate for quota in quotas)
        self.has_counts = any(
            quota.topics or quota.sessions or quota.connections or quota.kept_bytes for quota in quotas
        )
