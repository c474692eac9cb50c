"""Whether files have changed, as the file system tells it, for who reads them again; all of it blocks."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

Signature = tuple[tuple[int, ...], ...]

SETTLED_S: Final = 0.05
"""How long changed files must be left alone before they are read."""
LOOKS_MAX: Final = 20
"""Looks at files that go on changing, before they are read as they are."""


def signature_of(paths: Iterable[str | Path]) -> Signature:
    """What changes when one of these files does, or who may read it; absent ones count as ().

    Without the mode, a file that was refused as others could read it would not be read after `chmod 600`.
    """
    found: list[tuple[int, ...]] = []
    for path in paths:
        try:
            status = os.stat(path)
        except OSError:
            found.append(())
        else:
            content = status.st_mtime_ns, status.st_size, status.st_ino
            found.append((*content, status.st_mode, status.st_uid, status.st_gid))
    return tuple(found)


def changed(paths: Iterable[str | Path], *known: Signature) -> Signature | None:
    """The signature of these files, if it is none of `known`, and once they are left alone; else None.

    Who writes a file in its place empties it first: for that moment nobody would have any rights. Takes
    SETTLED_S for files that have changed, and LOOKS_MAX times that for some that go on changing.
    """
    paths = tuple(paths)
    signature = signature_of(paths)
    for _ in range(LOOKS_MAX):
        if signature in known:
            return None
        time.sleep(SETTLED_S)
        before, signature = signature, signature_of(paths)
        if signature == before:
            break
    return signature
