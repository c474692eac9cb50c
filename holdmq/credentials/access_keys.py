"""Access keys: the file that names them, and what each allows.

::

    [keys.orders]                        # the name is the access key that clients give
    secret = "…"                         # 32 characters or more; or certificates, or both
    certificates = ["orders.example"]    # a subject alternative name or common name of a client certificate
    roles = ["client"]                   # client (the default), reader, broker, service, admin
    produce = ["orders", "events-*"]     # topics, names or patterns (* ? [a-z])
    consume = ["orders"]
    groups = ["orders-*"]                # consumer groups; with their %RETRY% and %DLQ% topics
    tenant = "acme"                      # whose key it is: patterns then are of names within the tenant

What a role may do needs no pattern: `reader` reads everything, `broker` registers itself, `service` (a
gateway) reads everything and writes for devices, `admin` may do all. What is beyond its roles an entry may
do as its patterns say: a `reader` with `produce = ["results"]` writes to that topic too. No pattern matches
a system topic.

A key of a tenant is a client or reader, and neither reaches nor sees what is not its tenant's, whatever its
roles and patterns. The patterns of other keys reach a tenant's topics and groups only if they begin with its
name (`acme%*`): `*` is everything that is no tenant's.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, Final

from holdmq.credentials.permissions import BROKERS, GATEWAYS, NEEDS, READERS, Action, Needs, Role, names_in
from holdmq.errors import Code, ConfigError, RemoteError
from holdmq.files.private_file import read_private
from holdmq.names.tenants import SEPARATOR, in_tenant, split_tenant, tenant_fault, tenant_of
from holdmq.record.origin import DLQ_PREFIX, RETRY_PREFIX
from holdmq.wire.auth import SECRET_CHARACTERS_MIN
from holdmq.wire.codes import RequestCode

KEYS_MAX: Final = 10_000
"""Access keys of one file: as many as connections."""
FILE_MAX_BYTES: Final = 64 << 20
"""A file of access keys: 6 KiB for each of them."""
REMEMBERED_MAX: Final = 4_096
"""Decisions that one key remembers; past it all are taken anew. A client uses a few topics."""
_NAME_MAX: Final = 128
_FIELDS: Final = frozenset({"secret", "certificates", "roles", "produce", "consume", "groups", "tenant"})
_BY_NUMBER: Final[dict[int, Needs]] = {int(code): needs for code, needs in NEEDS.items()}
_NO_ROLES: Final[frozenset[Role]] = frozenset({Role.CLIENT})
_OF_TENANTS: Final = frozenset({Role.CLIENT, Role.READER})
"""Roles of a tenant's keys: the others are about the whole cluster."""


@dataclass(frozen=True, slots=True)
class AccessKey:
    """One entry of the file. `secret` "" = by certificate only; it is never shown."""

    name: str
    secret: str = field(default="", repr=False)
    certificates: tuple[str, ...] = ()
    roles: frozenset[Role] = _NO_ROLES
    produce: tuple[str, ...] = ()
    consume: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    tenant: str = ""


class Grants:
    """What one principal may do: decides on requests, and remembers what it decided on topics.

    Shared by all connections of the principal; replaced as a whole when its entry changes. `is_listed`:
    whether the file has an entry of this name.
    """

    __slots__ = ("_consume", "_consumes_all", "_free", "_groups", "_is_admin", "_produce", "_produces_all",
                 "_reads_tenant", "_sees_all", "_tenants", "is_listed", "key")  # fmt: skip

    def __init__(self, key: AccessKey, is_listed: bool = True) -> None:
        self.key = key
        self.is_listed = is_listed
        is_above = not key.tenant
        self._free = _sent_freely(key.roles) if is_above else _SENT_BY_TENANTS
        self._produces_all = is_above and not key.roles.isdisjoint(GATEWAYS)
        self._consumes_all = is_above and not key.roles.isdisjoint(READERS)
        self._is_admin = is_above and Role.ADMIN in key.roles
        self._reads_tenant = not is_above and Role.READER in key.roles
        self._sees_all = is_above and not key.roles.isdisjoint(READERS | BROKERS)
        patterns = (*key.produce, *key.consume, *key.groups)
        self._tenants = {"", *map(tenant_of, patterns)} if is_above else {key.tenant}
        self._produce: dict[str, bool] = {}
        self._consume: dict[str, bool] = {}
        self._groups: dict[str, bool] = {}

    def check(self, code: int, ext_fields: Mapping[str, Any]) -> None:
        """Raise RemoteError NOT_PERMITTED, naming principal, action and thing, unless all is allowed.

        What a request needs `by_item` is left to its handler.
        """
        if code in self._free:
            return
        needs = _BY_NUMBER.get(code)
        if needs is None:
            raise self._denied(f"send request {code}", "the server does not know it")
        is_flagged = not needs.flag or ext_fields.get(needs.flag) is True
        if not needs.by_patterns or not is_flagged:
            raise self._denied(
                f"send {RequestCode(code).name}",
                f"that takes the role {_any_of(needs.roles)}{', of no tenant' if self.key.tenant else ''}",
            )
        if not self.key.tenant and not self.key.roles.isdisjoint(needs.flag_roles):
            return
        is_read = self._reads_tenant and Role.READER in needs.roles
        for name in needs.groups:
            for group in self._named(code, ext_fields, name, needs.roles):
                if not (is_read and self.sees(group)) and not self.may_use_group(group):
                    raise self.group_denied(group)
        if needs.action is not None and not needs.by_item:
            for topic in self._named(code, ext_fields, needs.topics, needs.roles):
                if not self._matches(needs.action, topic):
                    raise self.topic_denied(needs.action, topic)

    def may_produce(self, topic: str) -> bool:
        """Whether records of this topic are taken; after the first time a look into a dict."""
        return self._produces_all or self._may_produce(topic)

    def may_consume(self, topic: str) -> bool:
        """Whether records of this topic are given; after the first time a look into a dict."""
        return self._consumes_all or self._may_consume(topic)

    def sees(self, name: str) -> bool:
        """Whether lists may have this topic or group: its tenant is the key's own, or one that it names."""
        return self._sees_all or tenant_of(name) in self._tenants

    def may_use_group(self, group: str) -> bool:
        """Whether this group may be joined, and its offsets moved."""
        if self._is_admin:
            return True
        known = self._groups.get(group)
        if known is None:
            known = _remember(self._groups, group, self._is_among(group, self.key.groups))
        return known

    def topic_denied(self, action: Action, topic: str) -> RemoteError:
        """The refusal: who may not do what to which topic, and what would allow it."""
        pattern = "produce" if action is Action.PRODUCE else "consume"
        return self._denied(f"{action.value} topic {topic!r}", self._why_not(topic, pattern))

    def group_denied(self, group: str) -> RemoteError:
        """The refusal of a group."""
        return self._denied(f"use group {group!r}", self._why_not(group, "groups"))

    def tenant_denied(self, tenant: str) -> RemoteError | None:
        """Refuse a client that speaks in this tenant's words ("" = in nobody's); None if it may."""
        own = self.key.tenant
        if not tenant or not own or tenant == own:
            return None
        return RemoteError(
            Code.UNAUTHENTICATED,
            f"access key {self.key.name!r} is of the tenant {own!r}, the client's `tenant` is {tenant!r}: "
            f"set it to {own!r}, or give a key of that tenant or of none",
        )

    def _why_not(self, name: str, pattern: str) -> str:
        own = self.key.tenant
        if not own or tenant_of(name) == own:
            return f"`{pattern}` of its entry in the keys file does not match it"
        if tenant_of(name):
            return f"the key is of the tenant {own!r}"
        whole = in_tenant(own, name)
        return (
            f"the key is of the tenant {own!r}, and that is nobody's: set the client's `tenant` to {own!r}, "
            f"or say the whole name {whole!r}"
        )

    def _matches(self, action: Action, topic: str) -> bool:
        """Whether the patterns of the entry, not its roles, allow this."""
        if action is Action.PRODUCE:
            return self._may_produce(topic)
        if action is Action.CONSUME:
            return self._may_consume(topic)
        return self._may_produce(topic) or self._may_consume(topic)

    def _may_produce(self, topic: str) -> bool:
        known = self._produce.get(topic)
        if known is None:
            known = _remember(self._produce, topic, self._is_among(topic, self.key.produce))
        return known

    def _may_consume(self, topic: str) -> bool:
        known = self._consume.get(topic)
        if known is None:
            of_group = _group_of(topic)
            if self._reads_tenant and self.sees(topic):
                known = True
            elif of_group is not None:
                known = self.may_use_group(of_group)
            else:
                known = self._is_among(topic, self.key.consume)
            _remember(self._consume, topic, known)
        return known

    def _is_among(self, name: str, patterns: tuple[str, ...]) -> bool:
        """Whether one of the key's patterns means this name; a name's tenant is never left to a wildcard."""
        if name.startswith(SEPARATOR):
            return False
        tenant, own = split_tenant(name)
        if self.key.tenant:
            return tenant == self.key.tenant and any(fnmatchcase(own, pattern) for pattern in patterns)
        meant = [split_tenant(pattern) for pattern in patterns]
        return any(owner == tenant and fnmatchcase(own, pattern) for owner, pattern in meant)

    def _named(
        self, code: int, ext_fields: Mapping[str, Any], name: str, roles: frozenset[Role]
    ) -> Iterable[str]:
        names = names_in(ext_fields, name.removesuffix("?"))
        if names is None:
            if name.endswith("?"):
                return ()
            raise self._denied(
                f"send {RequestCode(code).name} without a {name}",
                f"for all of them it takes the role {_any_of(roles)}",
            )
        return names

    def _denied(self, what: str, why: str) -> RemoteError:
        return RemoteError(Code.NOT_PERMITTED, f"{self.key.name!r} may not {what}: {why}")


@cache
def _sent_freely(roles: frozenset[Role]) -> frozenset[int]:
    """The codes of requests that these roles may send, whatever they name."""
    return frozenset(code for code, needs in _BY_NUMBER.items() if not roles.isdisjoint(needs.roles))


_SENT_BY_TENANTS: Final = _sent_freely(_NO_ROLES) | {code for code, n in _BY_NUMBER.items() if n.is_narrowed}
"""The codes of requests that a tenant's keys may send, whatever they name: answers have what the key sees."""


def _any_of(roles: frozenset[Role]) -> str:
    *others, last = [role.value for role in Role if role in roles]
    return f"{', '.join(others)} or {last}" if others else last


def _remember(known: dict[str, bool], name: str, decision: bool) -> bool:
    if len(known) >= REMEMBERED_MAX:
        known.clear()
    known[name] = decision
    return decision


def _group_of(topic: str) -> str | None:
    """The group whose retry or dead-letter topic this is."""
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if topic.startswith(prefix):
            return topic.removeprefix(prefix)
    return None


def load_keys(path: Path) -> dict[str, AccessKey]:
    """Read the file (blocking). Raises ConfigError, which names file and entry and shows no secret."""
    raw = read_private(path, "access keys", FILE_MAX_BYTES)
    try:
        document = tomllib.loads(raw.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"the access keys file {path} is not valid TOML: {error}") from error
    unknown = set(document) - {"keys"}
    entries = document.get("keys", {})
    if unknown or not isinstance(entries, dict):
        name = min(unknown, default="keys")
        raise ConfigError(f"{path}: {name!r} is not expected; entries are tables [keys.NAME]")
    if len(entries) > KEYS_MAX:
        raise ConfigError(f"{path}: {len(entries)} access keys; {KEYS_MAX} at most")
    keys = {name: _entry(path, name, entry) for name, entry in entries.items()}
    owners: dict[str, str] = {}
    for key in keys.values():
        for certificate in key.certificates:
            other = owners.setdefault(certificate, key.name)
            if other != key.name:
                raise ConfigError(f"{path}: certificate {certificate!r} is both {other!r} and {key.name!r}")
    return keys


def _entry(path: Path, name: str, entry: Any) -> AccessKey:
    where = f"{path}: [keys.{name}]"
    if not isinstance(entry, dict):
        raise ConfigError(f"{where} is a table: write its fields below it")
    for given in entry:
        if given not in _FIELDS:
            raise ConfigError(f"{where}: unknown field {given!r}; there are {', '.join(sorted(_FIELDS))}")
    if not 1 <= len(name) <= _NAME_MAX:
        raise ConfigError(f"{where}: a name has 1 to {_NAME_MAX} characters")
    secret = entry.get("secret", "")
    if not isinstance(secret, str) or 0 < len(secret) < SECRET_CHARACTERS_MIN:
        raise ConfigError(
            f"{where}: secret is a text of {SECRET_CHARACTERS_MIN} characters or more; "
            "`holdmq key create` makes one"
        )
    certificates = _texts(where, entry, "certificates")
    if not secret and not certificates:
        raise ConfigError(f"{where} has neither a secret nor certificates: nobody could use it")
    tenant = entry.get("tenant", "")
    if not isinstance(tenant, str):
        raise ConfigError(f"{where}: tenant is a text")
    key = AccessKey(
        name,
        secret,
        certificates,
        roles_of(where, _texts(where, entry, "roles")),
        _texts(where, entry, "produce"),
        _texts(where, entry, "consume"),
        _texts(where, entry, "groups"),
        tenant,
    )
    fault = tenant_of_key_fault(key)
    if fault is not None:
        raise ConfigError(f"{where}: {fault}")
    return key


def tenant_of_key_fault(key: AccessKey) -> str | None:
    """Why this key cannot be its tenant's; None if it can, or is no tenant's."""
    if not key.tenant:
        return None
    fault = tenant_fault(key.tenant)
    if fault is not None:
        return fault
    if not key.roles <= _OF_TENANTS:
        return f"a tenant's key has the roles {_any_of(_OF_TENANTS)}: others are about the whole cluster"
    for pattern in (*key.produce, *key.consume, *key.groups):
        if SEPARATOR in pattern:
            own = split_tenant(pattern)[1]
            return f"pattern {pattern!r}: a tenant's key names what it has without the tenant, as {own!r}"
    return None


def roles_of(where: str, names: Iterable[str]) -> frozenset[Role]:
    """Roles by name, never empty (client). ConfigError names one that is none."""
    known = {role.value: role for role in Role}
    found = []
    for name in names:
        if name not in known:
            raise ConfigError(f"{where}: {name!r} is no role; there are {', '.join(known)}")
        found.append(known[name])
    return frozenset(found) or _NO_ROLES


def _texts(where: str, entry: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = entry.get(name, [])
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise ConfigError(f"{where}: {name} is a list of texts")
    return tuple(value)


def by_certificate(keys: Iterable[AccessKey]) -> Callable[[Iterable[str]], AccessKey | None]:
    """A function that finds the entry of the first of a certificate's names that has one."""
    owners = {name: key for key in keys for name in key.certificates}

    def find(names: Iterable[str]) -> AccessKey | None:
        return next((owners[name] for name in names if name in owners), None)

    return find
