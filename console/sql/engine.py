"""Statements over the Delta tables of the statistics job, by DuckDB in memory: blocking, one at a time.

Each statement gets a database of its own, which has the tables as datasets and nothing else: no files, no
network, no extensions, no settings to change. Analysts' statements are looked at before
(`console.sql.core.select`).
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import duckdb
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from console.live.core.cells import cell, csv_line, json_line
from console.sql.core.select import parts_of, refusal

BATCH_ROWS: Final = 2048
"""Rows taken from DuckDB at once: its own vectors, so that a cut result costs little more than is shown."""

TABLES_MAX: Final = 64
"""Tables that are looked at; the job writes some ten."""

INTERRUPT_AGAIN_S: Final = 0.05
"""An interruption between two steps of a statement is lost: it is repeated until the statement ends."""

SETTINGS: Final[dict[str, Any]] = {
    "enable_external_access": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "allow_community_extensions": False,
    "allow_unsigned_extensions": False,
    # Else a name in FROM is looked for among this program's variables.
    "python_enable_replacements": False,
    # What does not fit into memory fails: it does not go to a disk.
    "temp_directory": "",
    "max_expression_depth": 250,
    "threads": 1,
}

FAILURES: Final = (duckdb.Error, DeltaError, pa.ArrowException, OSError, ValueError, RuntimeError)
"""What DuckDB, deltalake and pyarrow raise for statements and tables that cannot be read."""


OUT_OF_MEMORY: Final = "Out of Memory Error"
"""How DuckDB begins such an error; where it hands rows to Arrow, the exception is of a general kind."""


class QueryError(Exception):
    """A statement that has no result; `outcome` as in `console.sql.questions.Reply`."""

    def __init__(self, outcome: str, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome


class StatementBounds(NamedTuple):
    """What one statement may take: time in seconds, rows and bytes of its result."""

    seconds: float
    rows_max: int
    bytes_max: int


class Result(NamedTuple):
    """Rows as they came; `notice` says what was left out, if anything was."""

    columns: list[tuple[str, str]]
    """Name and DuckDB's type of each column."""
    lines: list[str]
    notice: str
    seconds: float


class Engine:
    """Runs statements over the tables below `tables_dir`, each with `memory_bytes`."""

    def __init__(self, tables_dir: Path, memory_bytes: int) -> None:
        self._tables_dir = tables_dir
        self._memory_bytes = memory_bytes

    def tables(self) -> dict[str, Path]:
        """Return the tables that are there by name; some directories may turn out to be damaged."""
        try:
            found = sorted(path.parent for path in self._tables_dir.glob("*/_delta_log"))
        except OSError:
            found = []
        return {path.name: path for path in found[:TABLES_MAX]}

    def path(self, table: str) -> Path:
        """Return where this table lies, or will."""
        return self._tables_dir / table

    def select(self, text: str, bounds: StatementBounds, line: Callable[[list[Any]], str]) -> Result:
        """Run an analyst's statement, which must be one SELECT over tables; `line` writes a row.

        A result beyond `bounds` is cut, and the notice says so. Raises QueryError.
        """
        started = time.monotonic()
        with self._database(bounds.seconds) as (database, names):
            check(database, text, names)
            return _taken(database.sql(text), bounds, line, started)

    @contextlib.contextmanager
    def reading(
        self, seconds: float
    ) -> Iterator[tuple[Callable[[str, Sequence[Any]], list[tuple[Any, ...]]], set[str]]]:
        """Yield a function that runs our own statements (text, parameters), and the names of the tables.

        Raises QueryError, also out of that function.
        """
        with self._database(seconds) as (database, names):

            def rows(text: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
                reader = database.sql(text, params=list(parameters)).to_arrow_reader(BATCH_ROWS)
                return [tuple(row.values()) for batch in reader for row in batch.to_pylist()]

            yield rows, names

    @contextlib.contextmanager
    def _database(self, seconds: float) -> Iterator[tuple[duckdb.DuckDBPyConnection, set[str]]]:
        """Yield a database that is interrupted after `seconds`; say what goes wrong with it as QueryError."""
        database = open_database(self._memory_bytes)
        ended = threading.Event()
        expired = threading.Event()

        def interrupt() -> None:
            if ended.wait(seconds):
                return
            expired.set()
            while not ended.is_set():
                database.interrupt()
                ended.wait(INTERRUPT_AGAIN_S)

        watch = threading.Thread(target=interrupt, name="query-deadline", daemon=True)
        watch.start()
        damaged: dict[str, str] = {}
        try:
            yield database, self._register(database, damaged)
        except QueryError:
            raise
        except (duckdb.OutOfMemoryException, MemoryError) as error:
            raise QueryError("memory", self._too_large()) from error
        except OverflowError as error:
            raise QueryError(
                "error",
                "a date or time of the result lies before the year 1 or after 9999, or is infinite: "
                "cast it to VARCHAR, or leave it out",
            ) from error
        except FAILURES as error:
            if expired.is_set():
                raise QueryError(
                    "time", f"the query was stopped after {seconds:g} s (console.sql_seconds_max)"
                ) from error
            said = str(error).strip()[:2000]
            if said.startswith(OUT_OF_MEMORY):
                raise QueryError("memory", self._too_large()) from error
            for name, reason in damaged.items():
                said += f"\nThe table {name} cannot be read at present: {reason}"
            raise QueryError("error", said) from error
        finally:
            ended.set()
            watch.join()
            database.close()

    def _too_large(self) -> str:
        return (
            f"the query needs more than {self._memory_bytes >> 20} MiB of memory (console.sql_memory_bytes): "
            "read fewer rows, or group them by less"
        )

    def _register(self, database: duckdb.DuckDBPyConnection, damaged: dict[str, str]) -> set[str]:
        tables = self.tables()
        for name, path in tables.items():
            try:
                database.register(name, DeltaTable(str(path)).to_pyarrow_dataset())
            except FAILURES as error:
                damaged[name] = (str(error).strip() or type(error).__name__).splitlines()[0]
        return set(tables)


def open_database(memory_bytes: int) -> duckdb.DuckDBPyConnection:
    """Return an empty database that reaches nothing outside itself, and whose settings cannot be changed."""
    limit = f"{max(1, memory_bytes >> 20)}MiB"
    database = duckdb.connect(":memory:", config={**SETTINGS, "memory_limit": limit})
    database.execute("SET TimeZone = 'UTC'")
    database.execute("SET lock_configuration = true")
    return database


def check(database: duckdb.DuckDBPyConnection, text: str, tables: set[str]) -> None:
    """Raise QueryError unless `text` is one SELECT over `tables`."""
    statements = database.extract_statements(text)
    if not statements:
        raise QueryError("refused", "there is no statement: write a SELECT")
    if len(statements) > 1:
        raise QueryError("refused", f"these are {len(statements)} statements: one at a time")
    kind = statements[0].type.name
    if kind != "SELECT":
        raise QueryError(
            "refused",
            f"{kind.replace('_', ' ')} is not available here: the tables are only read, with SELECT",
        )
    ((parsed,),) = database.execute("SELECT json_serialize_sql(?)", [text]).fetchall()
    try:
        tree = json.loads(parsed)
        if tree["error"]:
            said = str(tree.get("error_message", "DuckDB cannot take it apart"))
            raise QueryError("error" if tree.get("error_type") == "parser" else "refused", said)
        reason = refusal(parts_of(tree), tables)
    except (ValueError, RecursionError) as error:
        raise QueryError("refused", f"the statement is too deep or too long: {error}") from error
    if reason is not None:
        raise QueryError("refused", reason)


def _taken(
    relation: duckdb.DuckDBPyRelation,
    bounds: StatementBounds,
    line: Callable[[list[Any]], str],
    started: float,
) -> Result:
    columns = [(str(name), str(kind)) for name, kind in zip(relation.columns, relation.types, strict=True)]
    lines: list[str] = []
    size = 0
    notice = ""
    for batch in relation.to_arrow_reader(BATCH_ROWS):
        # By column: a result may have two of one name.
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            if len(lines) == bounds.rows_max:
                notice = (
                    f"only the first {bounds.rows_max:,} rows (console.sql_rows_max): "
                    "add a LIMIT, or group by less"
                )
                break
            written = line([cell(value) for value in row])
            size += len(written) + 1
            if size > bounds.bytes_max:
                notice = (
                    f"only the first {len(lines):,} rows, {bounds.bytes_max >> 20} MiB of text "
                    "(console.sql_result_max_bytes): choose fewer columns or rows"
                )
                break
            lines.append(written)
        if notice:
            break
    return Result(columns, lines, notice, time.monotonic() - started)


def json_body(result: Result) -> bytes:
    """Return ``{"columns": [{"name", "type"}], "rows": [[…]], "seconds"}`` with a `notice` if it was cut."""
    head = {
        "columns": [{"name": name, "type": kind} for name, kind in result.columns],
        "seconds": round(result.seconds, 4),
    }
    if result.notice:
        head["notice"] = result.notice
    text = json.dumps(head, ensure_ascii=False, separators=(",", ":"))[:-1]
    return f'{text},"rows":[{",".join(result.lines)}]}}'.encode()


def csv_body(result: Result) -> bytes:
    """Return a header of names, and the rows."""
    return (csv_line([name for name, _ in result.columns]) + "".join(result.lines)).encode()


LINES: Final[dict[str, Callable[[list[Any]], str]]] = {"json": json_line, "csv": csv_line}
BODIES: Final[dict[str, Callable[[Result], bytes]]] = {"json": json_body, "csv": csv_body}
