"""Whether a request that may do something comes from the console's own page, or from no page at all.

The console has no sign-in: whoever reaches its port may ask. A browser reaches it on behalf of every page
that is open in it, so a request with an effect is refused when the browser says that another site's page made
it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def refusal(method: str, headers: Headers, origins: Collection[str]) -> str | None:
    """Return why this request is refused, as a sentence; None when it may go on.

    Accepted are: safe methods; requests without an Origin, which no browser's page makes; those whose Origin
    is where the request went, when that is a number or localhost; and those of `origins`. A name that is not
    in `origins` may be anybody's who had it point here (DNS rebinding), even when it is the request's own.
    """
    if method in SAFE_METHODS:
        return None
    origin = headers.get("origin")
    if origin is None:
        site = headers.get("sec-fetch-site", "none")
        return None if site in ("none", "same-origin") else _sentence(method, site)
    if origin in origins:
        return None
    try:
        parts = urlsplit(origin)
        host = parts.hostname or ""
    except ValueError:
        return _sentence(method, origin[:80])
    if parts.netloc != headers.get("host") or not _is_ours(host):
        return _sentence(method, origin[:80])
    return None


def _is_ours(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _sentence(method: str, origin: str) -> str:
    return (
        f"a {method} from a page of {origin} is refused: open the console by its address, or name the page's "
        "origin in console.origins"
    )
