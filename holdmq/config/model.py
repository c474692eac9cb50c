"""Configuration: one model per section, one TOML file, environment variables, ``--set`` flags.

Rising precedence: the defaults here, the TOML file (``--config FILE`` or ``HOLDMQ_CONFIG``),
environment variables ``HOLDMQ_<SECTION>__<KEY>`` (two underscores), ``--set section.key=value``::

    [gateway]                          HOLDMQ_GATEWAY__PORT=1884        --set gateway.port=1884
    port = 1884

A section within one, as ``[storage.kv]``, is one name more in each: ``HOLDMQ_STORAGE__KV__PREFIX``.

Units are part of a key's name (``_ms``, ``_s``, ``_bytes``); values are plain numbers, never "5s" or
"1GiB". In the environment and in ``--set`` a list is ``a,b`` or a JSON array, and an empty value is
"unset" for a key that may be unset. A TOML value must have exactly its key's type.

An owner of a service appends fields to its section: a default, bounds, and a description that gives
the reason for the default. ``holdmq config keys`` prints all of it. ``holdmq.config.sources.load``
reads the sources.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SecretStr, ValidationInfo, field_validator

from holdmq.config.access import AccessSection
from holdmq.config.alarms import AlarmsSection
from holdmq.config.analytics import ConsoleSection, StatsSection
from holdmq.config.coordination import CoordinationSection
from holdmq.config.kv import KvSection
from holdmq.config.listeners import DEFAULT_LISTENER, ListenerSettings, conflict_of
from holdmq.config.mqtt_limits import MqttLimits
from holdmq.config.protection import ProtectionSettings
from holdmq.config.replication import ReplicationSection
from holdmq.config.routes import RouteSettings, routes_fault
from holdmq.config.section import AdminBind, AdminPort, Port, Section
from holdmq.config.security import SecuritySection
from holdmq.errors import ConfigError
from holdmq.names.clusters import WANTED_PATTERN
from holdmq.names.rooms import ROOM_PATTERN
from holdmq.service.host_rule import host_name_of

_MIB: Final = 1024 * 1024
_GIB: Final = 1024 * _MIB

Percent = Annotated[float, Field(gt=0, le=100)]


class ClusterSection(Section):
    """What all processes of one installation share."""

    name: str = Field(
        "holdmq",
        pattern=r"^[A-Za-z0-9_-]{1,64}$",
        description="Name of the cluster; brokers register under it. One installation needs only one; "
        "client.cluster chooses among several.",
    )


class RegistrySection(Section):
    """Configure the registry, by which clients find the brokers of a topic."""

    bind: str = Field("127.0.0.1", description="Listening address: internal, so loopback unless told.")
    port: Port = Field(9876, description="Port of the registry's RPC.")
    admin_bind: AdminBind = "127.0.0.1"
    admin_port: AdminPort = 9877
    scan_interval_s: float = Field(
        10, gt=0, le=3600, description="How often silent brokers are looked for: a fraction of the expiry."
    )
    broker_expiry_s: float = Field(
        120, gt=0, le=86400, description="Silence after which a broker is dropped: four lost registrations."
    )
    data_dir: str = Field(
        "holdmq-data/registry", min_length=1, description="Directory of orderTopic.json, the ordered topics."
    )
    accept_backup: bool = Field(
        False, description="Start with orderTopic.json.bak when the file itself is missing or damaged."
    )


class BrokerSection(Section):
    """The broker: topics, queues and readers over one store."""

    bind: str = Field("127.0.0.1", description="Listening address: internal, so loopback unless told.")
    port: Port = Field(10911, description="Port of the broker's RPC.")
    admin_bind: AdminBind = "127.0.0.1"
    admin_port: AdminPort = 10913
    name: str = Field(
        "broker-0",
        pattern=r"^[A-Za-z0-9_-]{1,64}$",
        description="Name of this broker in the cluster; written into its store, so it stays.",
    )
    advertise: str = Field(
        "",
        description="host:port that clients are told; empty = bind:port, right while all are on one machine.",
    )
    room: str = Field(
        "",
        pattern=ROOM_PATTERN,
        description="Machine room in which this process is, as members that share queues by machine_room "
        "know it; a replica says its own when it leads; empty = none.",
    )
    auto_create_topics: bool = Field(
        True, description="Create a topic on first use; topics_max bounds what that can cost."
    )
    topics_max: int = Field(
        10_000,
        ge=1,
        le=1_000_000,
        description="Topics of this broker: each queue costs a file and a table row.",
    )
    topic_queues_default: int = Field(
        4, ge=1, le=1024, description="Queues of a topic created on first use: consumers that can share it."
    )
    hide_grace_s: float = Field(
        45,
        ge=0,
        le=3600,
        description="How long queues that are hidden from producers still take records: until every client "
        "has refreshed its routes (30 s), so that nobody is refused.",
    )
    temporary_unread_s: float = Field(
        60,
        ge=1,
        le=86400,
        description="How long a temporary topic that nobody has read yet stays: who makes one by sending has "
        "a minute to read.",
    )
    auto_create_groups: bool = Field(
        True, description="Create a consumer group with its first member; groups_max bounds what that costs."
    )
    groups_max: int = Field(
        10_000,
        ge=1,
        le=1_000_000,
        description="Consumer groups of this broker: as many as topics, each has settings and offsets.",
    )
    group_members_max: int = Field(
        1_000,
        ge=1,
        le=100_000,
        description="Members of one group: every change is told to all of them, with the names of all.",
    )
    shared_window: int = Field(
        65_536,
        ge=64,
        le=1 << 20,
        description="Offsets past the oldest unfinished message of a queue that a shared group is given: "
        "behind one that is long in flight nothing new is handed out then. A bit of memory each.",
    )
    message_bytes_min: int = Field(
        0,
        ge=0,
        le=32_768,
        description="Smallest message, in bytes of its body as it travels (0 = none): who sends empty or cut "
        "ones is told. Have it alike at all brokers: gateways take the largest.",
    )
    retained_max: int = Field(
        1_000_000,
        ge=0,
        description="Retained MQTT messages of this broker: past it topics that have none get none (0x97).",
    )
    retained_max_bytes: int = Field(
        1 * _GIB,
        ge=0,
        description="Their topics and values together: what the table's database and its snapshots take.",
    )
    retained_message_max_bytes: int = Field(
        1 * _MIB,
        ge=1024,
        description="Largest retained message, properties included: it goes to everybody who subscribes.",
    )
    sessions_per_user_max: int = Field(
        1_000_000,
        ge=0,
        description="MQTT sessions of one user that this broker keeps while he is offline, clients without a "
        "name being one user (0 = no bound): a fifth of all it keeps, so that a fleet may have one name, and "
        "nobody can use up what others need. Past it only clean sessions are opened (0x97).",
    )
    bans_max: int = Field(
        10_000,
        ge=1,
        le=100_000,
        description="Bans of MQTT clients that this broker keeps: every gateway worker has them all in "
        "memory, 0.5 KiB each.",
    )
    queue_lease_s: float = Field(
        20,
        ge=0.1,
        le=3600,
        description="How long a member that is silent keeps its queues: four renewals of a client.",
    )
    offset_save_interval_s: float = Field(
        5,
        gt=0,
        le=3600,
        description="How often consumer offsets are saved: what a crash makes groups consume again.",
    )
    offset_commit: Literal["async", "sync"] = Field(
        "async",
        description="When a report of offsets is answered: async = at once, sync = when "
        "consumerOffset.json has it (costs a wait for the log's fsync and a file per group commit).",
    )
    register_interval_s: float = Field(
        30, gt=0, le=3600, description="How often the broker registers with every registry, beside on change."
    )


class StorageSection(Section):
    """The broker's message store; what sizes files, caches and disks is of the log engine."""

    engine: Literal["log", "kv"] = Field(
        "log",
        description="Where messages are: log = files of each broker, which need no server and are fastest; "
        "kv = a Valkey or Redis (storage.kv), which keeps them for brokers without a disk.",
    )
    data_dir: str = Field("holdmq-data/store", min_length=1, description="Directory of the store.")
    flush: Literal["async", "sync"] = Field(
        "async",
        description="When a write is confirmed: async = written to the kernel (survives a crash of the "
        "process), sync = on disk (survives power loss, costs a fdatasync per group commit).",
    )
    flush_interval_ms: int = Field(
        500, ge=1, le=60_000, description="Async flush: what a power loss may take, against fsync load."
    )
    segment_size_bytes: int = Field(
        1 * _GIB,
        ge=1 * _MIB,
        le=16 * _GIB,
        description="Size of a log segment: few files, a useful retention step.",
    )
    consume_queue_file_bytes: int = Field(
        60_000_000,
        ge=20,
        le=1 * _GIB,
        description="Size of a consume-queue file; rounded up to entries of 20 bytes.",
    )
    record_max_bytes: int = Field(
        4 * _MIB,
        ge=64 * 1024,
        le=12 * _MIB,
        description="Largest record; the base of the packet, frame and answer limits.",
    )
    tail_cache_bytes: int = Field(
        64 * _MIB,
        ge=1 * _MIB,
        le=64 * _GIB,
        description="Newest bytes of the log kept in memory for live readers.",
    )
    accept_backup: bool = Field(
        False,
        description="Start with the .bak of a damaged or missing configuration file: for one start, by hand.",
    )
    read_threads: int = Field(
        2, ge=1, le=64, description="Threads for cold reads: a disk answers a few requests at once well."
    )
    chunk_cache_bytes: int = Field(
        64 * _MIB,
        ge=0,
        le=64 * _GIB,
        description="Older parts of the log kept in memory for readers that catch up: some forty of them at "
        "a time, with what is read ahead for them.",
    )
    temporary_bytes: int = Field(
        64 * _MIB,
        ge=1 * _MIB,
        le=64 * _GIB,
        description="Memory of all temporary topics together; the oldest messages are dropped and counted.",
    )
    memory_limit_bytes: int = Field(
        0,
        ge=0,
        description="Memory that the caches may count on: at 40 % of it what is idle goes, from 75 % on "
        "nothing new is cached. 0 = the limit of the cgroup, or all that the machine has.",
    )
    retention_age_s: int = Field(
        259_200,
        ge=1,
        le=315_360_000,
        description="How long messages are kept: 72 h, a weekend in which nobody looked after a consumer.",
    )
    retention_bytes: int = Field(
        0, ge=0, description="Largest log; 0 = no limit: the watermarks bound what the disk can take."
    )
    retention_segments: int = Field(
        0, ge=0, le=1_000_000, description="Most segments; 0 = no limit, as age and watermarks do."
    )
    delete: Literal["expired", "consumed"] = Field(
        "expired",
        description="What may go when it is due: expired = everything, consumed = only what every group "
        "and durable session has passed. Above disk_forced_percent everything may, in both.",
    )
    group_expiry_s: int = Field(
        604_800,
        ge=1,
        le=315_360_000,
        description="Absence after which a group or session keeps nothing from going: 7 days, a consumer "
        "that is gone for longer is not coming back.",
    )
    disk_early_percent: Percent = Field(
        75,
        description="Disk use above which the oldest segments go before they are due, one per interval; "
        "100 = never.",
    )
    disk_forced_percent: Percent = Field(
        85,
        description="Disk use above which the oldest segments go, whoever still needs them, until there is "
        "room: losing the oldest is better than refusing the newest. 100 = never.",
    )
    disk_refuse_percent: Percent = Field(
        90,
        description="Disk use above which writes are refused until space returns: checkpoints and rolled "
        "timers need the rest. 100 = only when the disk is full.",
    )
    retention_interval_ms: int = Field(
        1000,
        ge=1,
        le=3_600_000,
        description="How often disk use is measured and old segments are looked for: a second fills at "
        "most a few GB.",
    )
    kv: KvSection = KvSection()

    @field_validator("disk_forced_percent", "disk_refuse_percent")
    @classmethod
    def _watermarks_ascend(cls, value: float, info: ValidationInfo) -> float:
        lower = {"disk_forced_percent": "disk_early_percent", "disk_refuse_percent": "disk_forced_percent"}
        below = lower[str(info.field_name)]
        if value < info.data.get(below, 0):
            raise ValueError(f"must be at least {below}, which is {info.data[below]:g}")
        return value


class GatewaySection(MqttLimits, ProtectionSettings):
    """The MQTT front end."""

    bind: str = Field(
        "127.0.0.1",
        description="Listening address; anything but loopback needs allow_anonymous set explicitly.",
    )
    port: Port = Field(1883, description="MQTT over TCP.")
    default_listener: bool = Field(
        True, description="Listen at bind and port; false = only at the places of listeners."
    )
    listeners: list[ListenerSettings] = Field(
        [],
        description="More listeners, an array of tables (docs/listeners.md): TLS, WebSocket, UNIX "
        "sockets, behind proxies. A JSON array in the environment and --set.",
    )
    tls_reload_interval_s: float = Field(
        5,
        gt=0,
        le=3600,
        description="How often listeners' certificates are looked at for changes; SIGHUP does it at once.",
    )
    admin_bind: AdminBind = "127.0.0.1"
    admin_port: AdminPort = 10914
    workers: int = Field(
        0,
        ge=0,
        le=256,
        description="Worker processes; 0 = half of the cores, at least 1 (brokers need the rest).",
    )
    allow_anonymous: bool | None = Field(
        None, description="Admit clients without credentials; unset = only while bind is a loopback address."
    )
    response_prefix: str = Field(
        "",
        max_length=128,
        pattern=r"^([^+#$\x00][^+#\x00]*)?$",
        description="MQTT 5 clients that ask for Response Information are told this and their client id, "
        "with a slash between, as a topic for answers; empty = not told.",
    )
    routes: list[RouteSettings] = Field(
        [],
        description="Routing rules, an array of tables (docs/mqtt.md): MQTT topics that match a filter are "
        "stored in one log topic; the first that matches counts. A JSON array in the environment and --set.",
    )
    sys_interval_s: float = Field(
        10,
        ge=1,
        le=3600,
        description="How often clients that subscribed to $SYS/… get the gateway's numbers that changed; "
        "access.sys_topics and the ACL say who may.",
    )
    drain_will_min_s: float = Field(
        30,
        ge=0,
        le=86_400,
        description="Least delay of the wills of clients that a draining gateway sends away: time to come "
        "back elsewhere.",
    )
    drain_s: float = Field(
        10, ge=0, le=3600, description="Time to disconnect clients in good order after SIGTERM."
    )

    @field_validator("routes")
    @classmethod
    def _routes_go_together(cls, value: list[RouteSettings]) -> list[RouteSettings]:
        fault = routes_fault(value)
        if fault is not None:
            raise ValueError(fault)
        return value

    def worker_count(self, cores: int) -> int:
        """Return the number of worker processes to start on a machine with `cores`, at least 1."""
        return self.workers or max(1, cores // 2)

    def all_listeners(self) -> list[ListenerSettings]:
        """Return the default listener, if it is not switched off, and the others.

        Raises ConfigError when they do not go together.
        """
        found = list(self.listeners)
        if self.default_listener:
            default = ListenerSettings(name=DEFAULT_LISTENER, kind="tcp", bind=self.bind, port=self.port)
            found.insert(0, default)
        conflict = conflict_of(found)
        if conflict is not None:
            raise ConfigError(conflict)
        return found

    def anonymous_allowed(self) -> bool:
        """Return whether clients without credentials are admitted.

        Raises ConfigError when the gateway would listen beyond loopback without an explicit choice.
        """
        listeners = self.all_listeners()
        if self.allow_anonymous is not None:
            return self.allow_anonymous
        for listener in listeners:
            if listener.is_local:
                continue
            where = f"gateway.bind is {self.bind}"
            if listener.name != DEFAULT_LISTENER:
                through = "serves a proxy" if listener.proxy else f"is at {listener.where}"
                where = f"the listener {listener.name!r} {through}"
            raise ConfigError(
                f"{where}, which other machines can reach, but gateway.allow_anonymous is not set; set it to "
                "true to admit everybody, or to false to admit only clients with credentials"
            )
        return True


class LogSection(Section):
    """Logging of every process, to standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least severe level that is written."
    )
    format: Literal["auto", "human", "json"] = Field(
        "auto", description="auto = human on a terminal, JSON lines otherwise."
    )


class ClientSection(Section):
    """How every process, the SDK and the command line find the cluster."""

    registries: list[str] = Field(
        [],
        description="host:port of every registry; empty = the address in [registry], right on one machine.",
    )
    cluster: str = Field(
        "",
        pattern=WANTED_PATTERN,
        description="Only brokers of this cluster and their topics, where registries know several "
        "(docs/cluster.md): for gateways, console, stats and commands; empty = those of all.",
    )
    access_key: str = Field("", description="Name of the access key to show; empty = none.")
    secret: SecretStr | None = Field(
        None, description="Secret of access_key; better in a file, as others may see the command line."
    )
    secret_file: str = Field(
        "",
        description="File with the secret of access_key, readable by its owner only; read at each connect.",
    )
    tls: bool = Field(
        False, description="Use TLS with the system's authorities; on by itself when another tls_ key is set."
    )
    tls_ca: str = Field(
        "",
        description="PEM file of the authorities that may sign servers' certificates; empty = the system's.",
    )
    tls_cert: str = Field("", description="PEM file of the client certificate to show; empty = none.")
    tls_key: str = Field("", description="PEM file of the key of tls_cert, readable by its owner only.")
    tls_server_name: str = Field(
        "", description="Name to look for in servers' certificates; empty = the host that is connected to."
    )
    tenant: str = Field(
        "",
        description="Commands name topics and groups in the words of this tenant, as --tenant; "
        "empty = in whole names.",
    )


class Config(BaseModel):
    """The whole configuration. ``Config()`` is the defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cluster: ClusterSection = ClusterSection()
    registry: RegistrySection = RegistrySection()
    broker: BrokerSection = BrokerSection()
    storage: StorageSection = StorageSection()
    replication: ReplicationSection = ReplicationSection()
    gateway: GatewaySection = GatewaySection()
    access: AccessSection = AccessSection()
    stats: StatsSection = StatsSection()
    console: ConsoleSection = ConsoleSection()
    security: SecuritySection = SecuritySection()
    alarms: AlarmsSection = AlarmsSection()
    coordination: CoordinationSection = CoordinationSection()
    log: LogSection = LogSection()
    client: ClientSection = ClientSection()

    _sources: dict[str, str] = PrivateAttr(default_factory=dict)
    _file: str | None = PrivateAttr(None)
    _sets: tuple[str, ...] = PrivateAttr(())

    def with_sources(self, sources: dict[str, str], file: str | None, sets: Sequence[str]) -> Config:
        """Remember where the values of the keys in `sources` come from, and return self."""
        self._sources.update(sources)
        self._file = file
        self._sets = tuple(sets)
        return self

    @property
    def file(self) -> str | None:
        """The TOML file that was read; None = there was none."""
        return self._file

    @property
    def sets(self) -> tuple[str, ...]:
        """What was given as ``--set``."""
        return self._sets

    def source_of(self, key: str) -> str:
        """Return where the value of ``section.key`` comes from: a file, a variable, --set, or "default"."""
        return self._sources.get(key, "default")

    def value_of(self, key: str) -> Any:
        """Return the value of ``section.key``, which must be a known key."""
        value: Any = self
        for name in key.split("."):
            value = getattr(value, name)
        return value

    def rpc_anonymous_allowed(self, section: Literal["registry", "broker"]) -> bool:
        """Return whether the RPC of a registry or broker admits connections without credentials.

        Raises ConfigError as ``SecuritySection.anonymous_allowed`` does.
        """
        return self.security.anonymous_allowed(section, self.value_of(f"{section}.bind"))

    def registries(self) -> list[str]:
        """Return ``host:port`` of every registry, never empty."""
        return list(self.client.registries) or [f"{self.registry.bind}:{self.registry.port}"]

    def host_names(self) -> list[str]:
        """Return the names under which HTTP and WebSocket ports may be asked (``holdmq.service.host_rule``).

        Beside security.hosts those in other keys: whoever wrote them there has them point at this
        installation. Names of a listener's own, of its certificate and ws_origins, are the listener's affair.
        """
        binds = [
            self.registry.admin_bind,
            self.broker.admin_bind,
            self.gateway.admin_bind,
            self.stats.admin_bind,
            self.console.admin_bind,
            self.console.bind,
            *(listener.bind for listener in self.gateway.listeners),
        ]
        places = [self.broker.advertise, *self.client.registries, *self.console.origins, *binds]
        named = (host_name_of(place) for place in places)
        return [*self.security.hosts, *(name for name in named if name)]
