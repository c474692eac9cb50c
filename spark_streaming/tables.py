"""The tables that the job writes: where they lie, their schemas, and reading them without Spark.

docs/spark.md describes them for everybody who reads the directories directly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

import pyarrow as pa

Merge = Literal["sum", "max"] | Callable[[Sequence[bytes]], bytes]
"""How values of rows with the same keys become one: a sum, the largest, or a function of binary values."""


class TableSpec(NamedTuple):
    """A table of the job.

    Several rows may have the same `keys`, one from each micro-batch that saw a part of them; readers put
    them together by `merges`, and so does the job's housekeeping. Rows older than
    ``stats.<name>_retention_s`` go.
    """

    name: str
    version: int
    """Of the schema: a table of another version is refused."""
    schema: pa.Schema
    keys: tuple[str, ...]
    """The time bucket first (a timestamp in µs, UTC), then what else tells rows apart."""
    merges: Mapping[str, Merge]
    """Every other column; None is never among their values."""
    fold_s: int = 0
    """Rows of the same keys are folded into one, by spans of time of this length; 0 = they stay."""
    derive: Callable[[pa.Table], pa.Table] | None = None
    """Sets columns that follow from others, in rows that were put together; None = there are none."""

    @property
    def time(self) -> str:
        """The column of the time bucket."""
        return self.keys[0]


def _tps(name: str, time: str, fold_s: int) -> TableSpec:
    schema = pa.schema(
        [
            pa.field(time, pa.timestamp("us", tz="UTC"), nullable=False),
            pa.field("topic", pa.string(), nullable=False),
            pa.field("messages", pa.int64(), nullable=False),
            pa.field("bytes", pa.int64(), nullable=False),
            pa.field("latency_max_ms", pa.int64(), nullable=False),
            pa.field("batch_id", pa.int64(), nullable=False),
        ]
    )
    merges: dict[str, Merge] = {"messages": "sum", "bytes": "sum", "latency_max_ms": "max", "batch_id": "max"}
    return TableSpec(name, 1, schema, (time, "topic"), merges, fold_s)


TPS_1S: Final = "tps_1s"
TPS_1M: Final = "tps_1m"
TPS_1H: Final = "tps_1h"

TPS_1S_TABLE: Final = _tps(TPS_1S, "second", 0)
# A round of housekeeping rewrites the spans that got rows: some 100,000 rows at 1,000 topics.
TPS_1M_TABLE: Final = _tps(TPS_1M, "minute", 2 * 3600)
TPS_1H_TABLE: Final = _tps(TPS_1H, "hour", 4 * 86_400)


def table_path(data_dir: str | Path, name: str) -> Path:
    """Return the directory of the table `name` of a job whose ``stats.data_dir`` is `data_dir`."""
    return Path(data_dir) / "tables" / name


def fold(table: TableSpec, rows: pa.Table) -> pa.Table:
    """Return `rows` of `table` with one row for each value of its keys, in their order."""
    grouped = rows.group_by(list(table.keys)).aggregate(
        [(name, merge if isinstance(merge, str) else "list") for name, merge in table.merges.items()]
    )
    ordered = grouped.sort_by([(key, "ascending") for key in table.keys])
    columns = {key: ordered[key] for key in table.keys}
    for name, merge in table.merges.items():
        if isinstance(merge, str):
            columns[name] = ordered[f"{name}_{merge}"]
        else:
            columns[name] = pa.array([merge(parts) for parts in ordered[f"{name}_list"].to_pylist()])
    folded = pa.table([columns[name] for name in table.schema.names], table.schema.names).cast(table.schema)
    return folded if table.derive is None else table.derive(folded)


def with_batch(rows: pa.Table, batch_id: int) -> pa.Table:
    """Return `rows` with the column `batch_id` as the last, which every table has."""
    return rows.append_column("batch_id", pa.repeat(pa.scalar(batch_id, pa.int64()), rows.num_rows))
