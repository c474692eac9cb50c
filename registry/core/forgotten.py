"""Brokers that were given up for good: no older store may register their names again. Pure.

`registry.core.order` keeps it with the ordered topics, whose rows of such a broker are gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdmq.wire.forget_headers import FORGOTTEN_MAX, TIME_MAX_MS, ForgottenRow, is_newer


class ForgottenBrokers:
    """The newest `rows_max` of them, in the order in which they were heard of."""

    def __init__(self, rows_max: int = FORGOTTEN_MAX) -> None:
        self._rows_max = rows_max
        self._rows: dict[str, ForgottenRow] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, broker: str) -> ForgottenRow | None:
        """What is known of a broker; None = it was not given up."""
        return self._rows.get(broker)

    def listed(self) -> list[ForgottenRow]:
        """All of them, the oldest first."""
        return list(self._rows.values())

    def learn(self, row: ForgottenRow) -> bool:
        """Take what somebody says; False = it was known."""
        if not is_newer(row, self._rows.get(row.broker)):
            return False
        self._rows.pop(row.broker, None)
        self._rows[row.broker] = row
        if len(self._rows) > self._rows_max:
            del self._rows[min(self._rows.values(), key=lambda one: one.forgotten_ms).broker]
        return True

    def content(self) -> list[dict[str, Any]]:
        """What the file keeps."""
        return [
            {"broker": row.broker, "forgottenMs": row.forgotten_ms, "isBack": row.is_back}
            for row in self._rows.values()
        ]

    def load(self, found: object) -> str:
        """Take a file's content; return what is wrong with it, "" = nothing."""
        if not isinstance(found, list):
            return "forgotten: no list"
        for one in found:
            if not isinstance(one, Mapping):
                return "forgotten: a row is no object"
            broker, at_ms, is_back = (one.get(name, "") for name in ("broker", "forgottenMs", "isBack"))
            is_row = isinstance(broker, str) and isinstance(at_ms, int) and isinstance(is_back, bool)
            if not is_row or not 0 < at_ms < TIME_MAX_MS:
                return f"forgotten: {dict(one)!r:.200} is no broker with a time"
            self.learn(ForgottenRow(broker, at_ms, is_back))
        return ""
