"""Tables in PostgreSQL: a batch's rows of all tables and its id in one transaction.

::

    holdmq.<table>                    one row for each value of a table's keys, which is their primary key
    holdmq.batches (app, batch_id)    the newest batch of each writer
    holdmq.versions (name, version)   schema versions of the tables
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import psycopg
import pyarrow as pa
import structlog
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from holdmq.errors import ConfigError, HoldMQError, StartupError
from spark_streaming.job.sink import MAINTENANCE_BATCHES, Standing, expiry_edge, refuse_schema
from spark_streaming.tables import TableSpec, fold

SCHEMA: Final = "holdmq"
WAIT_S: Final = 60.0
"""How long a batch waits for a server that is away: its restart is no failure of the job."""
RETRY_INTERVAL_S: Final = 1.0
CONNECT_TIMEOUT_S: Final = 10
EXPIRE_ROWS_MAX: Final = 50_000
"""Rows that one transaction removes: some tenths of a second."""
STATEMENT_TIMEOUT_MS: Final = 60_000
"""Longest wait for a lock that somebody else holds."""

_TYPES: Final = {
    pa.timestamp("us", tz="UTC"): "timestamptz",
    pa.string(): "text",
    pa.int64(): "bigint",
    pa.float64(): "double precision",
    pa.binary(): "bytea",
}
_SPELLED: Final = {"timestamptz": "timestamp with time zone"}
"""Types as PostgreSQL shows them, where that is not as one writes them."""
_LIBPQ: Final[dict[str, Any]] = {
    "application_name": "holdmq-stats",
    "connect_timeout": CONNECT_TIMEOUT_S,
    # A server whose machine is gone is noticed, not waited for.
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
    "options": f"-c timezone=UTC -c statement_timeout={STATEMENT_TIMEOUT_MS}",
}

log = structlog.get_logger("holdmq.stats")

_Result = TypeVar("_Result")
_Connection = psycopg.Connection[tuple[Any, ...]]


class PostgresqlSink:
    """The tables `specs` in the database of `url`; one writer at a time."""

    def __init__(
        self, url: str, specs: Sequence[TableSpec], retention: Callable[[TableSpec], dt.timedelta]
    ) -> None:
        """Connect. Raises ConfigError for a URL that is none, StartupError when nobody answers."""
        self._url = url
        self._specs = {spec.name: spec for spec in specs}
        self._retention = retention
        # The first batch of a process has a round: one that is started for a few batches has them too.
        self._batches = MAINTENANCE_BATCHES
        try:
            given = conninfo_to_dict(url)
        except psycopg.ProgrammingError as error:
            raise ConfigError(
                "stats.postgresql_url is no address of a database; it is like "
                "postgresql://user:password@host:5432/database"
            ) from error
        self._place = f"{given.get('host', 'localhost')}:{given.get('port', 5432)}/{given.get('dbname', '')}"
        self._connection: _Connection | None = None
        try:
            self._connection = self._connect()
        except psycopg.Error as error:
            raise StartupError(
                f"PostgreSQL at {self._place} (stats.postgresql_url) cannot be used: {_first_line(error)}"
            ) from error

    def standings(self, app: str) -> dict[str, Standing]:
        def look(connection: _Connection) -> dict[str, Standing]:
            found = {}
            versions = self._versions(connection)
            for name, spec in self._specs.items():
                if not _is_there(connection, name):
                    continue
                where = f"{SCHEMA}.{name} at {self._place}"
                schema = _schema_of(connection, name)
                refuse_schema(spec, f"the table {where}", versions.get(name, 1), schema)
                row = connection.execute(
                    sql.SQL("SELECT EXISTS (SELECT FROM {})").format(_table(name))
                ).fetchone()
                assert row is not None
                found[name] = Standing(where, _last_batch(connection, app), bool(row[0]))
            return found

        return self._run("looking at the tables", look)

    def create(self) -> None:
        def make(connection: _Connection) -> None:
            connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(SCHEMA)))
            connection.execute(
                sql.SQL(
                    "CREATE TABLE IF NOT EXISTS {} (app text PRIMARY KEY, batch_id bigint NOT NULL)"
                ).format(_table("batches"))
            )
            connection.execute(
                sql.SQL(
                    "CREATE TABLE IF NOT EXISTS {} (name text PRIMARY KEY, version integer NOT NULL)"
                ).format(_table("versions"))
            )
            for spec in self._specs.values():
                connection.execute(_creation(spec))
                connection.execute(
                    sql.SQL("INSERT INTO {} VALUES (%s, %s) ON CONFLICT DO NOTHING").format(
                        _table("versions")
                    ),
                    (spec.name, spec.version),
                )

        self._run("making the tables", make)

    def last_batch(self, app: str) -> int:
        return self._run("reading the newest batch", lambda connection: _last_batch(connection, app))

    def write(self, app: str, batch_id: int, rows: Mapping[str, pa.Table]) -> bool:
        def put(connection: _Connection) -> bool:
            # A commit whose answer was lost may still be in the server's hands. The row of its app makes this
            # one wait for it; the first batch of an app has none yet.
            connection.execute(
                sql.SQL("INSERT INTO {} VALUES (%s, -1) ON CONFLICT DO NOTHING").format(_table("batches")),
                (app,),
            )
            if batch_id <= _last_batch(connection, app):
                return False
            for name, spec in self._specs.items():
                if name in rows and rows[name].num_rows:
                    _merge(connection, spec, fold(spec, rows[name]))
            connection.execute(
                sql.SQL("UPDATE {} SET batch_id = %s WHERE app = %s").format(_table("batches")),
                (batch_id, app),
            )
            return True

        written = self._run(f"writing batch {batch_id}", put)
        self._batches += written
        return written

    def maintain(self, now: dt.datetime) -> bool:
        """Expire rows; they are folded as they come, and PostgreSQL cleans by itself."""
        if self._batches < MAINTENANCE_BATCHES:
            return False
        self._batches = 0
        for spec in self._specs.values():
            edge = expiry_edge(now, self._retention(spec))
            # In steps: whoever waits for a lock of one does not wait for all.
            while self._run("expiring rows", partial(_expire, spec=spec, edge=edge)) == EXPIRE_ROWS_MAX:
                pass
        return True

    def put_aside(self, name: str) -> str:
        schema = f"{SCHEMA}_{name.lower()}"

        def move(connection: _Connection) -> str:
            there = [table for table in self._specs if _is_there(connection, table)]
            if not there:
                return ""
            aside = sql.Identifier(schema)
            connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(aside))
            for table in there:
                connection.execute(sql.SQL("ALTER TABLE {} SET SCHEMA {}").format(_table(table), aside))
            connection.execute(
                sql.SQL("DELETE FROM {} WHERE name = ANY(%s)").format(_table("versions")), (there,)
            )
            return f"the schema {schema} at {self._place}"

        return self._run("putting the tables aside", move)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _connect(self) -> _Connection:
        return psycopg.connect(self._url, autocommit=True, **_LIBPQ)

    def _run(self, what: str, act: Callable[[_Connection], _Result]) -> _Result:
        """Return what `act` returns in a transaction; again on a new connection while the server is away.

        A commit whose answer was lost may be repeated as well: `act` sees what is there.
        """
        deadline = time.monotonic() + WAIT_S
        is_said = False
        while True:
            try:
                if self._connection is None or self._connection.closed:
                    self._connection = self._connect()
                with self._connection.transaction():
                    return act(self._connection)
            except psycopg.OperationalError as error:
                if time.monotonic() >= deadline:
                    raise HoldMQError(
                        f"PostgreSQL at {self._place} (stats.postgresql_url) failed at {what} for "
                        f"{WAIT_S:.0f} s: {_first_line(error)}"
                    ) from error
                if not is_said:
                    log.warning(
                        "PostgreSQL fails, the batch waits", server=self._place, reason=_first_line(error)
                    )
                    is_said = True
            except psycopg.Error as error:
                raise HoldMQError(
                    f"PostgreSQL at {self._place} (stats.postgresql_url) refused {what}: {_first_line(error)}"
                ) from error
            self.close()
            time.sleep(RETRY_INTERVAL_S)

    def _versions(self, connection: _Connection) -> dict[str, int]:
        if not _is_there(connection, "versions"):
            return {}
        rows = connection.execute(sql.SQL("SELECT name, version FROM {}").format(_table("versions")))
        return {str(name): int(version) for name, version in rows}


def _expire(connection: _Connection, spec: TableSpec, edge: dt.datetime) -> int:
    """Remove some rows that are older than `edge`, and return how many."""
    removed = connection.execute(
        sql.SQL(
            "DELETE FROM {0} WHERE ctid = ANY(ARRAY(SELECT ctid FROM {0} WHERE {1} < %s LIMIT %s))"
        ).format(_table(spec.name), sql.Identifier(spec.time)),
        (edge, EXPIRE_ROWS_MAX),
    )
    return removed.rowcount


def _merge(connection: _Connection, spec: TableSpec, rows: pa.Table) -> None:
    """Put `rows`, one for each value of the keys, together with those that are there."""
    stage = sql.Identifier("pg_temp", f"stage_{spec.name}")
    connection.execute(
        sql.SQL("CREATE TEMPORARY TABLE IF NOT EXISTS {} (LIKE {}) ON COMMIT DELETE ROWS").format(
            sql.Identifier(f"stage_{spec.name}"), _table(spec.name)
        )
    )
    _copy(connection, stage, rows)
    if any(callable(merge) for merge in spec.merges.values()):
        # Only this process can put such values together.
        found = connection.execute(
            sql.SQL("SELECT old.* FROM {} AS old JOIN {} USING ({})").format(
                _table(spec.name), stage, _names(spec.keys)
            )
        ).fetchall()
        if found:
            old = pa.Table.from_pylist(
                [dict(zip(spec.schema.names, row, strict=True)) for row in found], spec.schema
            )
            connection.execute(sql.SQL("TRUNCATE {}").format(stage))
            rows = fold(spec, pa.concat_tables([old, rows]))
            _copy(connection, stage, rows)
    connection.execute(
        sql.SQL("INSERT INTO {} AS old SELECT * FROM {} ON CONFLICT ({}) DO UPDATE SET {}").format(
            _table(spec.name),
            stage,
            _names(spec.keys),
            sql.SQL(", ").join(_update(spec, name) for name in spec.merges),
        )
    )


def _update(spec: TableSpec, name: str) -> sql.Composed:
    column = sql.Identifier(name)
    if any(callable(merge) for merge in spec.merges.values()):
        return sql.SQL("{0} = EXCLUDED.{0}").format(column)
    if spec.merges[name] == "sum":
        return sql.SQL("{0} = old.{0} + EXCLUDED.{0}").format(column)
    return sql.SQL("{0} = greatest(old.{0}, EXCLUDED.{0})").format(column)


def _copy(connection: _Connection, stage: sql.Identifier, rows: pa.Table) -> None:
    statement = sql.SQL("COPY {} FROM STDIN (FORMAT BINARY)").format(stage)
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        copy.set_types([_TYPES[field.type] for field in rows.schema])
        for batch in rows.to_batches():
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                copy.write_row(row)


def _creation(spec: TableSpec) -> sql.Composed:
    columns = [
        sql.SQL("{} {} NOT NULL").format(sql.Identifier(field.name), sql.SQL(_TYPES[field.type]))
        for field in spec.schema
    ]
    return sql.SQL("CREATE TABLE IF NOT EXISTS {} ({}, PRIMARY KEY ({}))").format(
        _table(spec.name), sql.SQL(", ").join(columns), _names(spec.keys)
    )


def _is_there(connection: _Connection, name: str) -> bool:
    row = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (f"{SCHEMA}.{name}",)).fetchone()
    return row is not None and bool(row[0])


def _schema_of(connection: _Connection, name: str) -> pa.Schema:
    """Return the columns of a table as Arrow has them; one of a type that no table has is null."""
    rows = connection.execute(
        "SELECT attname, format_type(atttypid, atttypmod), attnotnull FROM pg_attribute "
        "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        (f"{SCHEMA}.{name}",),
    )
    kinds = {_SPELLED.get(kind, kind): arrow for arrow, kind in _TYPES.items()}
    return pa.schema(
        [
            pa.field(column, kinds.get(kind, pa.null()), nullable=not fixed or kind not in kinds)
            for column, kind, fixed in rows
        ]
    )


def _last_batch(connection: _Connection, app: str) -> int:
    if not _is_there(connection, "batches"):
        return -1
    row = connection.execute(
        sql.SQL("SELECT batch_id FROM {} WHERE app = %s FOR UPDATE").format(_table("batches")), (app,)
    ).fetchone()
    return -1 if row is None else int(row[0])


def _table(name: str) -> sql.Identifier:
    return sql.Identifier(SCHEMA, name)


def _names(columns: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(sql.Identifier(column) for column in columns)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
