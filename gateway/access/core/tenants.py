"""Whose users are, as a file of lines says: `user:tenant`. Sans-IO.

::

    ada:acme                # one user
    meter-*:acme            # all whose names begin so: `*` stands for any characters, once in a line
    *@globex.example:globex

A line with the user's whole name counts before a `*`, and of those the first that fits. Who fits none is
nobody's, and so is who has no name. The last colon of a line counts: a tenant's name has none.
"""

from __future__ import annotations

from typing import Final

from holdmq.names.tenants import tenant_fault

LINES_MAX: Final = 500_000
"""Users of a file: as many as a file of passwords has."""
SHAPES_MAX: Final = 64
"""Different lengths of what is before and behind a `*`: each is one look-up of each CONNECT."""


class TenantFileError(ValueError):
    """A line that says of nobody whose he is; the text names it."""


class UserTenants:
    """The tenants of users. Made by `parse`; never changed."""

    __slots__ = ("_shapes", "_users")

    def __init__(
        self,
        users: dict[str, str],
        shapes: dict[tuple[int, int], dict[tuple[str, str], tuple[int, str]]],
    ) -> None:
        """`shapes`: by the lengths before and behind a `*`, these texts, with their line and its tenant."""
        self._users = users
        self._shapes = shapes

    @classmethod
    def parse(cls, text: str) -> UserTenants:
        """What a file's text says. Raises TenantFileError, which names the line."""
        users: dict[str, str] = {}
        shapes: dict[tuple[int, int], dict[tuple[str, str], tuple[int, str]]] = {}
        count = 0
        for number, line in enumerate(text.splitlines(), 1):
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            user, colon, tenant = line.rpartition(":")
            user, tenant = user.strip(), tenant.strip()
            if not colon or not user:
                raise TenantFileError(f"line {number}: not of the form user:tenant")
            fault = tenant_fault(tenant)
            if fault is not None:
                raise TenantFileError(f"line {number}: {fault}")
            head, star, tail = user.partition("*")
            if "*" in tail:
                raise TenantFileError(f"line {number}: {user[:64]!r} has more than one *")
            if star:
                shape = shapes.setdefault((len(head), len(tail)), {})
                known = shape.setdefault((head, tail), (number, tenant))[1]
            else:
                known = users.setdefault(user, tenant)
            if known != tenant:
                raise TenantFileError(f"line {number}: {user[:64]!r} is another tenant's above")
            count += 1
            if count > LINES_MAX or len(shapes) > SHAPES_MAX:
                raise TenantFileError(
                    f"line {number}: more than {LINES_MAX} lines, or than {SHAPES_MAX} different lengths of "
                    "what is before and behind a *"
                )
        return cls(users, shapes)

    def of(self, user: str) -> str:
        """The tenant of a user; "" = he is nobody's."""
        if not user:
            return ""
        named = self._users.get(user)
        if named is not None:
            return named
        first: tuple[int, str] | None = None
        for (before, behind), texts in self._shapes.items():
            # Not the same characters count for both ends.
            if len(user) >= before + behind:
                found = texts.get((user[:before], user[len(user) - behind :]))
                if found is not None and (first is None or found < first):
                    first = found
        return "" if first is None else first[1]
