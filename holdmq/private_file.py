"""Files that are put in place as a whole; those that hold secrets are readable by their owner only."""

from __future__ import annotations

import os
from pathlib import Path

from holdmq.disk import create_anew


def write_private(path: Path, content: bytes) -> None:
    """Put `content` in place of the file, which only its owner can read; whole or not at all. OSError."""
    replace_file(path, content, 0o600)


def replace_file(path: Path, content: bytes, mode: int) -> None:
    """Put `content` in place of the file, with `mode` but for the umask; whole or not at all. OSError."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = create_anew(draft, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
