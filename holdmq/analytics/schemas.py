"""Names and columns of the tables whose rows cannot simply be summed. docs/spark.md describes them.

The job writes them (`spark_streaming/job`), `reading.py` reads them; so may everybody, as they are Delta.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

BACKLOG: Final = "backlog"
LATENCY: Final = "latency"
DEVICES_1M: Final = "devices_1m"
TALKERS_1M: Final = "talkers_1m"

LATENCY_ABOVE_MS: Final = 2**63 - 1
"""Upper bound of the histogram's last bucket: no end. An integer as the others: every reader can sort it."""
LATENCY_BOUNDS_MS: Final = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 60_000),
    LATENCY_ABOVE_MS,
)
"""Upper bounds of the buckets: percentiles within a factor of 2 to 3, 16 rows a minute and topic at most."""

SKETCH_LG_K: Final = 12
"""log2 of the registers of a sketch of devices: 4 KiB at most, ±1.6 % (one sigma)."""

_INSTANT: Final = pa.timestamp("us", tz="UTC")


def _schema(*fields: tuple[str, pa.DataType]) -> pa.Schema:
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in fields])


BACKLOG_SCHEMA: Final = _schema(
    ("time", _INSTANT),
    ("group", pa.string()),
    ("topic", pa.string()),
    ("broker", pa.string()),
    ("lag", pa.int64()),
    ("age_ms", pa.int64()),
    ("batch_id", pa.int64()),
)
"""`lag` messages of `topic` at `broker` wait for `group` or are in flight, the oldest for `age_ms`."""

LATENCY_SCHEMA: Final = _schema(
    ("minute", _INSTANT),
    ("topic", pa.string()),
    ("le_ms", pa.int64()),
    ("messages", pa.int64()),
    ("batch_id", pa.int64()),
)
"""`messages` were stored `le_ms` after their born time at most, and more than the next smaller bound."""

DEVICES_1M_SCHEMA: Final = _schema(
    ("minute", _INSTANT),
    ("topic", pa.string()),
    ("messages", pa.int64()),
    ("devices", pa.int64()),
    ("sketch", pa.binary()),
    ("batch_id", pa.int64()),
)
"""`sketch` is a DataSketches HLL of the client ids of `messages`, `devices` its estimate."""

TALKERS_1M_SCHEMA: Final = _schema(
    ("minute", _INSTANT),
    ("topic", pa.string()),
    ("client_id", pa.string()),
    ("messages", pa.int64()),
    ("batch_id", pa.int64()),
)
"""The clients with most `messages` of a batch, minute and topic; the others have no row."""
