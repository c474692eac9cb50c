"""Which names a list is asked for: brokers answer so, and clients read what older brokers answer."""

from __future__ import annotations

from collections.abc import Collection


def names_found(known: Collection[str], names: Collection[str] | None, search: str) -> list[str]:
    """Return which of the `known` names are wanted, sorted.

    `names`: only these, None = any. `search`: only what has it somewhere, in capitals or not.
    """
    wanted = set(known) if names is None else set(known).intersection(map(str, names))
    text = search.lower()
    return sorted(name for name in wanted if text in name.lower())
