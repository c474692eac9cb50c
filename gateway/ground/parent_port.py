"""What the rooms of a worker say to its parent, which has all workers of the gateway."""

from __future__ import annotations

from typing import Protocol


class ParentPort(Protocol):
    """Takes messages for the parent, if there is one."""

    @property
    def has_parent(self) -> bool:
        """Whether there is somebody to tell."""

    def tell(self, message: dict[str, object]) -> bool:
        """Send the parent a message; False when it has no room for it now, or never will."""
