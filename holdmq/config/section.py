"""What the sections of the configuration share; the sections are in ``holdmq.config.model``."""

from __future__ import annotations

import ipaddress
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Port = Annotated[int, Field(ge=0, le=65535)]
"""A TCP port; 0 lets the kernel choose a free one (tests)."""

AdminBind = Annotated[
    str,
    Field(
        description="Address of /startz, /readyz, /healthz, /metrics: loopback, they have no access control."
    ),
]
AdminPort = Annotated[Port, Field(description="Port of /startz, /readyz, /healthz and /metrics.")]


class Section(BaseModel):
    """A section of the configuration: frozen, and closed against keys that it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


def is_loopback(host: str) -> bool:
    """Return whether a listener on `host` can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
