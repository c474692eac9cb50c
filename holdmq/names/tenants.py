"""Tenants' names: whose a topic or group is, and how its tenant calls it.

Everything of a tenant is named ``TENANT%NAME``, which nobody else's name can be::

    orders  of acme            <->  acme%orders
    %RETRY%readers  of acme    <->  %RETRY%acme%readers

MQTT clients of a tenant say topics, filters and client ids of their own; gateways put `mount_of` their
tenant before them, and take it away on the way back::

    orders/42  of acme         <->  $%acme/orders/42  in the log topic  acme%orders

MQTT lets no wildcard at a filter's first level match a ``$`` [MQTT-4.7.2-1], and no client publishes below
one: what is mounted is not seen from outside. Pure functions; "" stands for no tenant.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from holdmq.errors import UsageError
from holdmq.record.origin import DLQ_PREFIX, RETRY_PREFIX

TENANT_BYTES_MAX: Final = 32
"""The longest tenant's name: three quarters of a topic's name stay for its own."""
SEPARATOR: Final = "%"
MOUNT: Final = "$%"
"""What MQTT topics, filters and client ids of a tenant begin with inside HoldMQ; no client may say it."""

_TENANT: Final = re.compile(r"[A-Za-z0-9_-]+\Z")


class Mounted(NamedTuple):
    """A tenant, "" for none, and what stands behind its mount."""

    tenant: str
    inner: str


def tenant_fault(name: str) -> str | None:
    """Why no tenant may be called so; None if one may: 1 to TENANT_BYTES_MAX of `[A-Za-z0-9_-]`."""
    if len(name) > TENANT_BYTES_MAX:
        return f"tenant name {name[:TENANT_BYTES_MAX]!r}... is longer than {TENANT_BYTES_MAX} bytes"
    if not _TENANT.match(name):
        return f"tenant name {name!r} must be of letters, digits, _ and -"
    return None


def check_tenant(name: str) -> None:
    """Raise UsageError for a name that no tenant may have."""
    fault = tenant_fault(name)
    if fault is not None:
        raise UsageError(fault)


def tenant_of(name: str) -> str:
    """Return whose a topic or group is: `acme` of `acme%orders` and `%RETRY%acme%readers`, "" of others."""
    tenant, _ = split_tenant(_own(name))
    return tenant


def in_tenant(tenant: str, name: str) -> str:
    """Return the whole name of what its tenant calls `name`; without a tenant that is `name`."""
    if not tenant:
        return name
    own = _own(name)
    return f"{name[: len(name) - len(own)]}{tenant}{SEPARATOR}{own}"


def within(tenant: str, name: str) -> str:
    """Return how a tenant calls what has this whole name; a name that is not its own stays as it is."""
    if not tenant:
        return name
    own = _own(name)
    prefix = tenant + SEPARATOR
    if not own.startswith(prefix):
        return name
    return name[: len(name) - len(own)] + own[len(prefix) :]


def own_name_fault(tenant: str, name: str) -> str | None:
    """Why a tenant cannot call anything of its own so; None if it can: that is no whole name, nor HoldMQ's.

    Of HoldMQ's own topics a tenant has those of its groups' retries and dead letters.
    """
    if SEPARATOR not in _own(name):
        return None
    if tenant_of(name) == tenant:
        return f"{name!r} is a whole name: with the tenant {tenant!r} say {within(tenant, name)!r}"
    if tenant_of(name):
        return f"{name!r} is not of the tenant {tenant!r}: a name in its own words has no {SEPARATOR!r}"
    return f"{name!r} is about the whole cluster: it is of no tenant, and the tenant here is {tenant!r}"


def split_tenant(name: str) -> tuple[str, str]:
    """Split a name without `%RETRY%` and its like into its tenant, "" for none, and what that calls it."""
    tenant, separator, own = name.partition(SEPARATOR)
    return (tenant, own) if separator and tenant else ("", name)


def mount_of(tenant: str) -> str:
    """Return what MQTT topics, filters and client ids of a tenant begin with; "" without a tenant."""
    return f"{MOUNT}{tenant}/" if tenant else ""


def split_mount(name: str) -> Mounted:
    """Split an MQTT topic, filter or client id into its tenant and what that calls it."""
    if not name.startswith(MOUNT):
        return Mounted("", name)
    tenant, slash, inner = name[len(MOUNT) :].partition("/")
    return Mounted(tenant, inner) if slash and tenant else Mounted("", name)


def _own(name: str) -> str:
    """The group of a retry or dead-letter topic, and any other name whole."""
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return name[len(prefix) :]
    return name
