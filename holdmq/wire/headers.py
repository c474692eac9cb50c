"""Every request and response of the internal RPC, one typed header each.

Rows are listed before the headers that carry them. Offsets are queue offsets, positions are
log positions; both are the *next* one to read. Times ending in `_ms` are milliseconds since
the epoch or durations, as the name says.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, Final, NamedTuple

from holdmq.wire.forget_headers import ForgottenRow
from holdmq.wire.header import Header, header

PROTOCOL_VERSION: Final = 1


@header
class Empty(Header):
    """A header without fields."""


# HELLO, HEARTBEAT


@header
class HelloRequest(Header):
    """The first request of a connection. `role`: client, gateway, broker, console, stats.

    With an access key it is sent twice: `proof` is empty first, then what holdmq.wire.auth says.
    `reads_replica`: it comes to read, whether the peer leads its shard or not; a replica that does not lead
    refuses all others with NOT_LEADER. `tenant`: in whose words it speaks, "" = in whole names; a key of
    another tenant is refused.
    """

    protocol_version: int
    role: str
    client_id: str
    software: str = ""
    access_key: str = ""
    nonce: bytes = b""
    proof: bytes = b""
    reads_replica: bool = False
    tenant: str = ""


@header
class HelloResponse(Header):
    """Name the server that answers. `store_id` and `log_epoch` are empty and 0 at a registry.

    `principal`: as whom the connection was admitted, "" = anonymous. `proof`: holdmq.wire.auth.
    `message_bytes_min`: smaller bodies are refused; it is what BOUNDS_CHANGED said last.
    """

    protocol_version: int
    name: str
    cluster: str
    now_ms: int
    store_id: bytes = b""
    log_epoch: int = 0
    record_max_bytes: int = 0
    frame_max_bytes: int = 0
    principal: str = ""
    proof: bytes = b""
    message_bytes_min: int = 0


@header
class BoundsChangedRequest(Header):
    """One-way, by a broker to whoever may produce: what HELLO said of it before is this now."""

    message_bytes_min: int


@header
class HeartbeatRequest(Header):
    """Sent at intervals by clients; `state` is shown by CONNECTION_LIST (numbers and short texts)."""

    state: dict[str, Any] = field(default_factory=dict)


# PRODUCE


class ProduceRun(NamedTuple):
    """Consecutive records of one topic and queue; sequences count one per record."""

    topic: str
    queue_id: int
    records: int
    producer_id: int
    producer_epoch: int
    first_sequence: int


class RunResult(NamedTuple):
    """`status` is an errors.Code; `base_offset` the first record's queue offset, -1 on refusal."""

    status: int
    base_offset: int
    remark: str


@header
class ProduceRequest(Header):
    """Body: count u32 | sizes u32 x count | records. `crc` is the body's CRC-32.

    `delayed`: indices of the runs whose records wait until they are due (holdmq.wire.move_headers);
    `noted`: of those with records that say what they are known by (holdmq.record.once), of which what the
    broker has already is not stored again: such a run's base offset is -1 if a part of it was left out.
    """

    crc: int
    runs: list[ProduceRun]
    want_positions: bool = False
    delayed: list[int] = field(default_factory=list)
    noted: list[int] = field(default_factory=list)


@header
class ProduceResponse(Header):
    """One RunResult per run; `positions`: per accepted run its records' log positions, if wanted."""

    results: list[RunResult]
    positions: list[list[int]] | None = None
    retry_after_ms: int = 0


# PULL and its filters


class PullQueue(NamedTuple):
    """One queue to read. `log_epoch` 0 = no claim about the epoch of `offset`."""

    topic: str
    queue_id: int
    log_epoch: int
    offset: int


class PulledQueue(NamedTuple):
    """One queue's part of a PULL answer, in the order of the request.

    `status` is an errors.Code: OK (also with no records), QUEUE_UNKNOWN, TOPIC_UNKNOWN,
    OFFSET_AHEAD, OFFSET_BEHIND, CORRUPT. `next_offset` is where to continue in every case.
    """

    topic: str
    queue_id: int
    status: int
    next_offset: int
    first_offset: int
    end_offset: int
    records: int
    length_bytes: int


@header
class PullRequest(Header):
    """Read from many queues; held up to `hold_ms` when there is nothing at all.

    `group` "" = read for nobody. A member of a clustering group gives its name and `generations`, one per
    queue: those of the leases under which it reads (older ones: GROUP_FENCED for their queue).
    `replica_reads`: holdmq.wire.replica_reads. `is_replay`: it reads again what was, and is counted so.
    """

    queues: list[PullQueue]
    max_bytes: int
    hold_ms: int = 0
    filter_id: int | None = None
    group: str = ""
    generations: list[int] = field(default_factory=list)
    replica_reads: int = 0
    is_replay: bool = False


@header
class PullResponse(Header):
    """Body: the records of each queue one after the other, in the order of `queues`.

    `at_replica`: indices of the rows whose queues are to be asked for at `replica` (host:port) next. An
    answer of that replica names itself for those that it has more of; the others are the leader's again.
    """

    queues: list[PulledQueue]
    log_epoch: int
    replica: str = ""
    at_replica: list[int] = field(default_factory=list)


class FilterTerm(NamedTuple):
    """One term of a filter. A message passes a filter when it passes any of its terms.

    `kind` is a TermKind. `topic` "" = every topic that MQTT may see. `hash` is the exact tag
    hash (TAG) or the prefix hash (PREFIX, low half 0); `filter` the MQTT filter over the tag.
    """

    kind: int
    topic: str
    hash: int
    filter: str


class TermKind:
    """Kinds of FilterTerm, from the cheapest to test to the dearest."""

    TOPIC: Final = 0
    TAG: Final = 1
    PREFIX: Final = 2
    MQTT: Final = 3


@header
class FilterSetRequest(Header):
    """Register a filter on this connection, or change it."""

    filter_id: int
    add: list[FilterTerm]
    remove: list[FilterTerm] = field(default_factory=list)


@header
class FilterSetResponse(Header):
    """`position`: the confirmed position from which the change holds."""

    position: int
    log_epoch: int


# Readers


@header
class ReadOpenRequest(Header):
    """Register a reader. `position` None = the confirmed end."""

    reader_id: int
    log_epoch: int
    position: int | None
    add: list[FilterTerm] = field(default_factory=list)


@header
class ReadFilterRequest(Header):
    """Change a reader's filter set."""

    reader_id: int
    add: list[FilterTerm]
    remove: list[FilterTerm] = field(default_factory=list)


@header
class ReadPosition(Header):
    """Where a reader stands, or where a filter change took effect."""

    position: int
    log_epoch: int


@header
class ReadRequest(Header):
    """Ask for the next batch in log order; answered when something matched or `hold_ms` ended."""

    reader_id: int
    credit_bytes: int
    hold_ms: int


@header
class ReadResponse(Header):
    """Body: records as they lie in the log. `position`: everything below it has been scanned.

    `is_late`: the records lie below `position`: a topic kept them while it was paused, and was resumed.
    """

    position: int
    log_epoch: int
    records: int
    is_late: bool = False


@header
class ReadCloseRequest(Header):
    """Forget a reader and what it has not read."""

    reader_id: int


@header
class ReadAtRequest(Header):
    """Where a reader begins that is to get what was stored at `store_ms` (the broker's clock) or later.

    Answered with a ReadPosition: the log's end if nothing was, its beginning for 0.
    """

    store_ms: int


# Topics


class TopicRow(NamedTuple):
    """One topic's settings (topic.json).

    Producers see the first `write_queues` queues, consumers the first `read_queues`, and the first
    `stored_queues` exist (0 = as many as consumers see). `retention_ms` 0 = as long as the log.
    `first_group`: FIRST_GROUP_OWN or FIRST_GROUP_BEGINNING; `first_reader` is that group, "" = none yet.
    `spread`: SPREAD_ALL or SPREAD_FIXED.
    """

    topic: str
    read_queues: int
    write_queues: int
    perm: int
    kind: str
    key_levels: int
    order: bool
    filter_type: str = "tag"
    sys_flag: int = 0
    retention_ms: int = 0
    is_paused: bool = False
    stored_queues: int = 0
    first_group: str = "own"
    first_reader: str = ""
    spread: str = "all"


class TopicStats(NamedTuple):
    """Counts since the broker's start, and what the queues hold now (sum over queues).

    Out is what consumers pulled, replayed what replays and Spark read.
    """

    topic: str
    messages_in: int
    bytes_in: int
    messages_out: int
    bytes_out: int
    messages_stored: int
    messages_replayed: int = 0
    bytes_replayed: int = 0


@header
class TopicCreateRequest(Header):
    """Create a topic; creating it again with the same settings succeeds.

    `queues` 0 = the broker's topic_queues_default. `by_use`: created because somebody uses
    it, which auto_create_topics must allow (TOPIC_UNKNOWN if not); an existing topic is then
    answered as it is, whatever its settings. `kind`: log, table or temporary; a name that ends
    in #tmp is temporary. `perm` is the sum of 4 read, 2 write, 1 inherit; `retention_ms` 0 = as the log.
    `first_group` as in TopicRow, `spread` too; "" = all brokers, unless it is ordered or no log.
    """

    topic: str
    queues: int = 0
    key_levels: int = 1
    kind: str = "log"
    by_use: bool = False
    perm: int = 6
    order: bool = False
    retention_ms: int = 0
    first_group: str = "own"
    spread: str = ""


@header
class TopicCreateResponse(Header):
    """`topics`: one TopicRow, as it is now and durable in topic.json."""

    topics: list[TopicRow]


@header
class TopicListRequest(Header):
    """List topics; system topics only when asked for.

    `names`: only these, None = all. `search`: only those that have it in their names, in capitals or not.
    `column`: of each topic its name and this field of TopicRow or TopicStats, "" = whole rows. A broker that
    does not know these three answers with whole rows of all topics.
    """

    include_system: bool = False
    names: list[str] | None = None
    search: str = ""
    column: str = ""


@header
class TopicListResponse(Header):
    """Rows are TopicRow and TopicStats, in the same order.

    To a request for a `column`: no rows, but `names` and the `values` of the column, in the same order.
    """

    topics: list[TopicRow]
    stats: list[TopicStats]
    names: list[str] | None = None
    values: list[int | str] | None = None


class QueueBounds(NamedTuple):
    """First offset and next confirmed offset of a queue."""

    topic: str
    queue_id: int
    first_offset: int
    end_offset: int


@header
class QueueBoundsRequest(Header):
    """Bounds of every queue of these topics; unknown topics are left out of the answer."""

    topics: list[str]


@header
class QueueBoundsResponse(Header):
    """List the first and next offset of queues, a QueueBounds each."""

    queues: list[QueueBounds]
    log_epoch: int


# Status


class SubscriptionRow(NamedTuple):
    """What a connection subscribes to as a member of a group."""

    group: str
    mode: str
    topic: str
    filter: str


class ConnectionRow(NamedTuple):
    """One connection to a broker, as its HELLO, its last heartbeat, its groups and its requests say.

    `subscriptions` are SubscriptionRow, the first of them when they are many: `state` has their number.
    `principal` is its access key, "" = anonymous; `kinds` are of holdmq.wire.connection_kinds. `produces`: up
    to ten topics that it sent to last; `reads`: up to ten that it reads for no group.
    """

    role: str
    client_id: str
    address: str
    language: str
    software: str
    connected_ms: int
    state: dict[str, Any]
    subscriptions: list[SubscriptionRow] = []  # noqa: RUF012 - a row is never changed
    principal: str = ""
    kinds: list[str] = []  # noqa: RUF012
    produces: list[str] = []  # noqa: RUF012
    reads: list[str] = []  # noqa: RUF012


@header
class ConnectionListResponse(Header):
    """List the broker's connections, a ConnectionRow each."""

    connections: list[ConnectionRow]


@header
class BrokerStatusResponse(Header):
    """The broker's own numbers: names as in its metrics."""

    name: str
    cluster: str
    store_id: bytes
    log_epoch: int
    first_position: int
    confirmed_position: int
    writable: bool
    reason: str
    numbers: dict[str, Any]


# Registry


class BrokerRow(NamedTuple):
    """A broker: its cluster, id (0 = master), address host:port, and the epoch in which it leads its copies.

    `epoch` 0 = it has none. `room`: the machine room in which this process is, "" = it says none.
    """

    cluster: str
    broker: str
    broker_id: int
    address: str
    epoch: int = 0
    room: str = ""


@header
class BrokerRegisterRequest(Header):
    """A broker with all its topics (TopicRow); replaces what it said before.

    `epoch`: in which it leads its copies, 0 = it has none. One that is lower than another process of the name
    has registered with is refused: NOT_LEADER. `room`: as in BrokerRow. `made_ms`: when its store was made,
    ms since the epoch, 0 = it does not say; one that is older than the forgetting of its name is refused:
    BROKER_FORGOTTEN. `sessions` and `retained`: rows that it keeps of both, -1 = not known. `forgotten`
    (ForgottenRow): what it has heard from registries, for those that were not told.
    """

    cluster: str
    broker: str
    broker_id: int
    address: str
    data_version: int
    topics: list[TopicRow]
    epoch: int = 0
    room: str = ""
    made_ms: int = 0
    sessions: int = -1
    retained: int = -1
    forgotten: list[ForgottenRow] = field(default_factory=list)


@header
class BrokerRegisterResponse(Header):
    """How many brokers of this cluster the registry knows, this one too; 0 = an older one does not say.

    `forgotten`: the brokers that were given up (ForgottenRow), as the registry has them now.
    """

    brokers: int = 0
    forgotten: list[ForgottenRow] = field(default_factory=list)


@header
class BrokerUnregisterRequest(Header):
    """Take a broker out of every table, unless a process of a higher epoch has registered its name."""

    cluster: str
    broker: str
    broker_id: int
    epoch: int = 0


class RouteRow(NamedTuple):
    """A topic's queues on one broker. `order`: its keys stay with their queues, whoever is absent."""

    topic: str
    broker: str
    read_queues: int
    write_queues: int
    perm: int
    kind: str
    key_levels: int
    order: bool = False


@header
class RouteGetRequest(Header):
    """Routes of these topics, or of all when None.

    `known_version`: the version of an earlier answer for the same topics. While nothing that the answer would
    hold has changed since, the request is held up to `hold_ms` and then answered `unchanged`; a connection
    holds one such request, a newer one ends it. `after`: the page that follows this topic; see
    RouteGetResponse. `cluster`: only brokers of this cluster and what they have, "" = those of all; a
    registry that does not know it answers with all.
    """

    topics: list[str] | None = None
    known_version: int | None = None
    hold_ms: int = 0
    after: str = ""
    cluster: str = ""


@header
class RouteGetResponse(Header):
    """Rows are RouteRow and BrokerRow. `version` rises with every change of any table.

    Topics come in the order of their names. `next_after` not "": more follow, ask again with it as `after`;
    pages whose `version` is the same are of one moment. `unchanged`: as of `known_version`, and without rows.
    `forgotten`: brokers that were given up (ForgottenRow): what other registries say of one is outdated,
    unless it is back.
    """

    routes: list[RouteRow]
    brokers: list[BrokerRow]
    version: int
    next_after: str = ""
    unchanged: bool = False
    forgotten: list[ForgottenRow] = field(default_factory=list)


class OrderRow(NamedTuple):
    """Brokers of an ordered topic, and the queues of each."""

    topic: str
    queues: dict[str, int]


@header
class OrderGetRequest(Header):
    """Ordered topics as this registry keeps them: these, or all when None.

    `cluster`: only at its brokers and at those whose cluster is not known, "" = at all.
    """

    topics: list[str] | None = None
    cluster: str = ""


@header
class OrderGetResponse(Header):
    """Rows are OrderRow, by topic; topics that are not ordered are left out."""

    topics: list[OrderRow]


@header
class OrderSetRequest(Header):
    """Make a topic ordered at exactly these brokers (name → queues); {} = not ordered any more.

    Answered when it is in the registry's file. A broker that is registered must have the topic. `cluster`:
    in place of what is known of its brokers, and leaves those of other clusters as they are; "" = of all.
    """

    topic: str
    queues: dict[str, int]
    cluster: str = ""


@header
class ClusterGetRequest(Header):
    """What a registry knows of brokers and topics. `cluster`: only of this one, "" = of all."""

    cluster: str = ""


@header
class ClusterGetResponse(Header):
    """Live brokers (BrokerRow) and, per broker name, the ms since it last registered."""

    brokers: list[BrokerRow]
    silent_ms: dict[str, int]
    topics: list[str]
