"""What the sections of the configuration share; the sections are in ``holdmq.config``."""

from __future__ import annotations

import ipaddress

from pydantic import BaseModel, ConfigDict


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
