"""To whom an HTTP request may be addressed: the rule of every HTTP and WebSocket port, sans-IO.

A web page may be of a name whose owner has it point at this machine while the page is open (DNS rebinding).
For the browser the page and this server are then one origin, and whatever protects one origin from another
protects nothing. Such a request still says the name, in Host. So a name counts only when it is one of ours;
an address in digits, of which nobody disposes, and ``localhost`` always do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from ipaddress import IPv4Address, IPv6Address
from typing import Final, NamedTuple
from urllib.parse import urlsplit

HOSTS_KEY: Final = "security.hosts"
"""The key of the configuration that names more hosts; for messages."""
NAME_MAX_CHARACTERS: Final = 253
"""Of a DNS name (RFC 1035, 2.3.4), without its final dot."""

_SHOWN_CHARACTERS: Final = 80
_LABEL: Final = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_PATTERN: Final = re.compile(rf"\*(?:\.{_LABEL}){{2,}}")
# host [":" port] of RFC 3986; what a browser can send has no user in it. A zone (%eth0) is for link-local
# addresses, and only programs send it.
_AUTHORITY: Final = re.compile(
    r"(?:\[(?P<six>[0-9A-Fa-f:.]{2,45})(?:%[A-Za-z0-9._~-]{1,32})?\]|(?P<name>[A-Za-z0-9._-]{1,254}))"
    r"(?::[0-9]{0,5})?"
)


class Refusal(NamedTuple):
    """Why a request is not answered: the HTTP status, and a sentence for people."""

    status: int
    sentence: str


class AllowedHosts:
    """The names under which this server may be asked, beside addresses in digits and ``localhost``.

    `names` are host names without ports, in any case; ``*.example.com`` is every name with one label before
    ``.example.com``, as in certificates. What is no such name never matches.
    """

    __slots__ = ("_names", "_parents")

    def __init__(self, names: Iterable[str] = ()) -> None:
        known = {_plain(name) for name in names}
        self._names = frozenset({"localhost", *known})
        self._parents = frozenset(name[2:] for name in known if name.startswith("*."))

    def allows(self, authority: str) -> bool:
        """Return whether `authority`, a host with or without a port, is this server.

        The port is not compared: it may be mapped on the way.
        """
        found = _AUTHORITY.fullmatch(authority)
        if found is None:
            return False
        six = found["six"]
        if six is not None:
            return _is_address(IPv6Address, six)
        if _is_address(IPv4Address, found["name"]):
            return True
        name = _plain(found["name"])
        label, _, parent = name.partition(".")
        return name in self._names or (bool(label) and parent in self._parents)

    def refusal(self, target: str, hosts: Sequence[str], *, is_http_1_0: bool = False) -> Refusal | None:
        """Return why a request for `target` with the Host headers `hosts` is refused; None when it is not.

        There must be one Host (RFC 9112, 3.2). Only HTTP/1.0 may do without: no browser speaks it, but
        health checks do. The authority of a target that is a whole URL counts as well, and both must be ours:
        another server on the way may have believed either.
        """
        try:
            authority, _ = split_target(target)
        except ValueError as error:
            return Refusal(HTTPStatus.BAD_REQUEST, str(error))
        if len(hosts) > 1:
            return Refusal(HTTPStatus.BAD_REQUEST, "there must be one Host header, not several")
        if not hosts and not is_http_1_0:
            return Refusal(HTTPStatus.BAD_REQUEST, "there must be a Host header")
        for named in (*hosts, *(() if authority is None else (authority,))):
            name = named.strip(" \t")
            if not self.allows(name):
                return Refusal(
                    HTTPStatus.MISDIRECTED_REQUEST,
                    f"{name[:_SHOWN_CHARACTERS]!a} is no name of this server: ask by its IP address or as "
                    f"localhost, or list the name in {HOSTS_KEY} of the configuration",
                )
        return None


def split_target(target: str) -> tuple[str | None, str]:
    """Return the authority of a request's target, None without one, and its path with the query.

    Raises ValueError for what is neither a path, nor ``*``, nor a URL of http, https, ws or wss.
    """
    if target.startswith("/") or target == "*":
        return None, target
    scheme, mark, rest = target.partition("://")
    if not mark or scheme.lower() not in ("http", "https", "ws", "wss"):
        raise ValueError(f"{target[:_SHOWN_CHARACTERS]!a} is neither a path nor a URL")
    end = next((at for at, character in enumerate(rest) if character in "/?#"), len(rest))
    path = rest[end:]
    return rest[:end], path if path.startswith("/") else f"/{path}"


def is_host_name(name: str) -> bool:
    """Return whether the configuration may list `name`: a name, or ``*.`` before two labels or more."""
    plain = _plain(name)
    if len(plain) > NAME_MAX_CHARACTERS:
        return False
    return _NAME.fullmatch(plain) is not None or _PATTERN.fullmatch(plain) is not None


def host_name_of(place: str) -> str | None:
    """Return the host in ``host:port``, a bare host or an origin (``https://host``); None without one."""
    try:
        return urlsplit(place if "://" in place else f"//{place}").hostname
    except ValueError:
        return None


def _plain(name: str) -> str:
    """The name as it is compared: a final dot says that it is complete, which it is anyway."""
    return name.lower().removesuffix(".")


def _is_address(kind: type[IPv4Address | IPv6Address], text: str) -> bool:
    try:
        kind(text)
    except ValueError:
        return False
    return True
