"""Whether a request that may do something comes from the console's own page, or from no page at all.

The console has no sign-in: whoever reaches its port may ask. A browser reaches it on behalf of every page
that is open in it, so a request with an effect is refused when the browser says that another site's page made
it.
"""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def refusal(method: str, headers: Headers, origins: Collection[str]) -> str | None:
    """Return why this request is refused, as a sentence; None when it may go on.

    Accepted are: safe methods; requests without an Origin of which no browser says (Sec-Fetch-Site) that
    another site's page made them; those whose Origin is where the request went; and those of `origins`. The
    request must have passed ``holdmq.service.host_rule``: where it went may else be a name that somebody had
    point here (DNS rebinding).
    """
    if method in SAFE_METHODS:
        return None
    origin = headers.get("origin")
    if origin is None:
        origin = headers.get("sec-fetch-site", "none")
        accepted = origin in ("none", "same-origin")
    else:
        accepted = origin in origins or _is_own(origin, headers.get("host"))
    if accepted:
        return None
    return (
        f"a {method} from a page of {origin[:80]} is refused: open the console by its address, or name the "
        "page's origin in console.origins"
    )


def _is_own(origin: str, host: str | None) -> bool:
    """Return whether this is where the request went."""
    try:
        netloc = urlsplit(origin).netloc
    except ValueError:
        return False
    return bool(netloc) and netloc == host
