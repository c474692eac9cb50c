"""The sections ``[stats]`` and ``[console]``: what the Spark job counts and keeps, and who may see it."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field, SecretStr

from holdmq.config.section import AdminBind, AdminPort, Port, Section, is_loopback
from holdmq.errors import ConfigError

_MIB: Final = 1024 * 1024
_GIB: Final = 1024 * _MIB


class StatsSection(Section):
    """The Spark Structured Streaming job."""

    data_dir: str = Field("holdmq-data/stats", min_length=1, description="Checkpoints and tables of the job.")
    admin_bind: AdminBind = "127.0.0.1"
    admin_port: AdminPort = 10915
    trigger_interval_ms: int = Field(
        1000,
        ge=100,
        le=600_000,
        description="Time between micro-batches: a second's row is readable 2 s later.",
    )
    master: str = Field(
        "",
        pattern=r"^(spark://[^,/\s]+:\d+(,[^,/\s]+:\d+)*)?$",
        description="Standalone Spark cluster that counts, as spark://host:7077, its masters separated by "
        "commas; empty = this machine alone. spark-submit says it by itself (docs/spark.md).",
    )
    driver_host: str = Field(
        "",
        description="Address of this machine for the executors of stats.master; empty = the one from which "
        "it reaches the master.",
    )
    cores: int = Field(
        2,
        ge=1,
        le=256,
        description="Cores that Spark may take, of this machine or the cluster; also its shuffle partitions.",
    )
    driver_heap_bytes: int = Field(
        512 * _MIB,
        ge=256 * _MIB,
        le=256 * _GIB,
        description="Heap of the JVM: batches are small and stream through.",
    )
    max_records_per_batch: int = Field(
        500_000,
        ge=1,
        le=100_000_000,
        description="Bound of one micro-batch: a second or two of work, so that a backlog leaves in steps.",
    )
    tps_1s_retention_s: int = Field(
        172_800,
        ge=3600,
        le=31_536_000,
        description="Age at which rows of tps_1s go: two days at one-second detail, some hundred MiB.",
    )
    tps_1m_retention_s: int = Field(
        2_592_000,
        ge=3600,
        le=315_360_000,
        description="Age at which rows of tps_1m go: 30 days, a month to compare with; 43,200 rows a topic.",
    )
    tps_1h_retention_s: int = Field(
        63_072_000,
        ge=86_400,
        le=630_720_000,
        description="Age at which rows of tps_1h go: two years, a year to compare with; 17,520 rows a topic.",
    )
    latency_retention_s: int = Field(
        2_592_000,
        ge=3600,
        le=315_360_000,
        description="Age at which rows of latency go: 30 days; up to 16 rows a minute and topic.",
    )
    backlog_interval_s: int = Field(
        30,
        ge=0,
        le=3600,
        description="Time between two samples of the groups' backlog, and for a broker's answer; 0 = none.",
    )
    backlog_retention_s: int = Field(
        2_592_000,
        ge=3600,
        le=315_360_000,
        description="Age at which rows of backlog go: 30 days; a row a sample, group, topic and broker.",
    )
    devices: bool = Field(
        True,
        description="Count devices and find top talkers, by a query of their own: about 3 us of a core per "
        "message more, and Python processes that plan and read.",
    )
    devices_interval_s: int = Field(
        60,
        ge=1,
        le=3600,
        description="Time between micro-batches of devices: a minute's sketch is one row, rarely two.",
    )
    devices_records_per_batch_max: int = Field(
        4_000_000,
        ge=1,
        le=100_000_000,
        description="Bound of a micro-batch of devices: 66,000 messages/s, and its result fits the heap.",
    )
    talkers_max: int = Field(
        20,
        ge=1,
        le=1000,
        description="Top talkers that a micro-batch writes for a minute and topic.",
    )
    devices_1m_retention_s: int = Field(
        604_800,
        ge=3600,
        le=315_360_000,
        description="Age at which rows of devices_1m go: a week; up to 4 KiB a minute and topic.",
    )
    talkers_1m_retention_s: int = Field(
        604_800,
        ge=3600,
        le=315_360_000,
        description="Age at which rows of talkers_1m go: a week; stats.talkers_max rows a minute and topic.",
    )
    sink: Literal["delta", "postgresql"] = Field(
        "delta",
        description="Where the tables are: delta = directories below data_dir, which need no server, "
        "postgresql = the schema holdmq of a database (docs/spark.md).",
    )
    postgresql_url: SecretStr | None = Field(
        None,
        description="Address of the database, as postgresql://user:password@host:5432/database; without a "
        "password ~/.pgpass is asked. A secret: better in the file or the environment than in --set.",
    )


class ConsoleSection(Section):
    """The web console and its HTTP API."""

    bind: str = Field("127.0.0.1", description="Listening address.")
    port: Port = Field(8080, description="Port of the web console.")
    admin_bind: AdminBind = "127.0.0.1"
    admin_port: AdminPort = 10916
    auth: Literal["accounts", "none"] = Field(
        "accounts",
        description="accounts: people sign in, programs have tokens; none: whoever reaches the port may do "
        "everything, and bind must be a loopback address.",
    )
    session_idle_s: float = Field(
        12 * 3600.0,
        ge=60,
        le=366 * 86_400,
        description="A browser that asks nothing for so long is signed out.",
    )
    session_max_s: float = Field(
        7 * 86_400.0, ge=60, le=366 * 86_400, description="Whoever signed in has to again after so long."
    )
    trusted_proxies: list[str] = Field(
        [],
        description="Addresses or networks of proxies whose X-Forwarded-For and -Proto are believed; name "
        "none that others can send from.",
    )
    streams_max: int = Field(
        64,
        ge=1,
        le=10_000,
        description="Pages that may stay open: each holds a stream and gets an event every second.",
    )
    requests_max: int = Field(
        256,
        ge=2,
        le=20_000,
        description="HTTP requests in hand, streams included: four times the pages that may stay open.",
    )
    data_dir: str = Field(
        "holdmq-data/console", min_length=1, description="Directory of accounts, audit log and saved queries."
    )
    origins: list[str] = Field(
        [],
        description="Origins (https://console.example.org) of pages that may send and save queries, besides "
        "the console's own under an IP address or localhost.",
    )
    sql_seconds_max: float = Field(
        10.0, ge=0.1, le=3600, description="Time for one query; then it is stopped: others wait for it."
    )
    sql_rows_max: int = Field(
        10_000,
        ge=1,
        le=10_000_000,
        description="Rows of a query's result, which is cut there: more than anybody reads on a page.",
    )
    sql_result_max_bytes: int = Field(
        16 * _MIB,
        ge=64 * 1024,
        le=128 * _MIB,
        description="Size of a query's result as text, which is cut there.",
    )
    sql_memory_bytes: int = Field(
        256 * _MIB,
        ge=64 * _MIB,
        le=256 * _GIB,
        description="Memory of a query: groups of some million rows; its process may take twice that.",
    )
    sql_waiting_max: int = Field(
        8, ge=1, le=1000, description="Queries in hand: one runs, the others wait in line."
    )
    saved_queries_max: int = Field(
        200, ge=0, le=10_000, description="Queries that may be saved, each of at most 64 KiB."
    )

    def check_exposure(self) -> None:
        """Raise ConfigError when whoever is on the network could do everything."""
        if self.auth == "none" and not is_loopback(self.bind):
            raise ConfigError(
                f"console.bind is {self.bind}, which other machines can reach, and console.auth is none: let "
                "people sign in (console.auth = accounts), or bind it to 127.0.0.1"
            )
