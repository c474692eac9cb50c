"""Settings of a store on a disk that others may have filled."""

from __future__ import annotations

from typing import Final

ANY_DISK: Final = {"disk_early_percent": 100.0, "disk_forced_percent": 100.0, "disk_refuse_percent": 100.0}
"""Neither deletes nor refuses anything because of what lies on the machine's disk beside the test."""
