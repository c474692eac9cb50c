"""Names of clusters, under which brokers register, and of which clients may want one alone. Pure."""

from __future__ import annotations

import re
from typing import Final

WANTED_PATTERN: Final = r"^[A-Za-z0-9_-]{0,64}$"
"""What a setting of whoever looks for brokers takes; "" = those of all clusters."""

_WANTED: Final = re.compile(r"[A-Za-z0-9_-]{0,64}\Z")


def cluster_fault(cluster: str) -> str | None:
    """Why no cluster can have this name, as a sentence; None = one can, or it is "", all of them."""
    if _WANTED.match(cluster):
        return None
    return f"cluster name {cluster[:70]!r} must be 1 to 64 letters, digits, _ and -"
