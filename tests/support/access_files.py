"""Files of access, as tests want them."""

from __future__ import annotations

from pathlib import Path

from argon2 import PasswordHasher

from gateway.access.user_file import write_users

QUICK = PasswordHasher(time_cost=1, memory_cost=64, parallelism=1)
"""What is tested is the path, not the cost."""


def password_file(path: Path, **users: str) -> str:
    """Set these users' passwords in a file; its path."""
    write_users(path, {name: QUICK.hash(word) for name, word in users.items()}, "")
    return str(path)


def written(path: Path, text: str) -> str:
    """Write a file, whole from the first moment on, as its owner's alone; its path."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(text)
    new.chmod(0o600)
    new.replace(path)
    return str(path)
