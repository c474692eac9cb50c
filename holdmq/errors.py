"""Every exception of HoldMQ, and the one table of wire codes.

::

    HoldMQError
    ├── UsageError              the caller broke an API's contract
    ├── ConfigError             a configuration key, file or flag is wrong
    ├── StartupError            a process cannot start: port busy, directory unwritable
    ├── PeerError               what a peer sent breaks a protocol; the connection ends
    │   ├── WireError           the internal RPC (code PROTOCOL_ERROR)
    │   └── MqttError           MQTT; carries the reason code (holdmq.mqtt.reasons)
    ├── RecordError             bytes that are no valid log record
    ├── StorageError            an operation of the store failed: operation, path, offset, hint
    │   ├── StoreFullError      no space: refused, recovers by itself
    │   ├── StoreReadOnlyError  a failed disk: read-only until restart
    │   ├── ShardLostError      another process owns what this store kept, or leads: outcome unknown
    │   ├── NotLeaderError      another replica takes records: nothing is stored
    │   ├── FewReplicasError    too few copies follow to acknowledge: nothing is stored (retriable)
    │   ├── StoreFormatError    a directory, file or format that must not be opened
    │   └── CorruptRecordError  damage below the checkpoint
    ├── CoordinatorError        no answer of a shard's coordinator: outcome unknown (retriable)
    ├── ShardStateError         what a coordinator keeps of a shard is not understood here
    ├── TransportError          no connection, or it was lost (retriable)
    │   ├── RequestTimeout      no answer within the deadline (retriable)
    │   └── LeadLostError       the peer leads its shard no more: the route says who does (retriable)
    ├── RemoteError             a peer answered with an error code
    │   └── BusyError           BUSY: back off `retry_after_ms`, then try again
    ├── OffsetError             a consumer's position has nothing to read; says where to continue
    └── BatchError              some messages of a batch were not stored: a result or error for each

`code` is what the wire carries for an error, `retriable` tells a client whether the same
request may succeed later without anybody's help.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final, NamedTuple


class Code(IntEnum):
    """Response codes of the internal RPC. 0 is success; numbers are never reused."""

    OK = 0
    SYSTEM_ERROR = 1
    BUSY = 2
    UNKNOWN_REQUEST = 3
    PROTOCOL_ERROR = 4
    MISSING_FIELD = 5
    NOT_PERMITTED = 6
    HELLO_REQUIRED = 7
    VERSION_UNSUPPORTED = 8
    BODY_CRC = 9
    MALFORMED_BATCH = 10
    RECORD_TOO_LARGE = 11
    TOPIC_UNKNOWN = 12
    TOPIC_INVALID = 13
    TOPIC_LIMIT = 14
    TOPIC_EXISTS = 15
    TOPIC_PERM = 16
    QUEUE_UNKNOWN = 17
    OUT_OF_SEQUENCE = 18
    PRODUCER_FENCED = 19
    STORE_FULL = 20
    STORE_READ_ONLY = 21
    STORE_FAILED = 22
    CORRUPT = 23
    OFFSET_AHEAD = 24
    OFFSET_BEHIND = 25
    FILTER_UNKNOWN = 26
    READER_UNKNOWN = 27
    LIMIT_EXCEEDED = 28
    SHUTTING_DOWN = 29
    TAG_INVALID = 30
    UNAUTHENTICATED = 31
    TOPIC_PAUSED = 32
    TOPIC_IN_USE = 33
    KIND_UNFIT = 34
    GROUP_UNKNOWN = 35
    GROUP_INVALID = 36
    GROUP_DISABLED = 37
    GROUP_FENCED = 38
    MODE_CONFLICT = 39
    RECEIPT_UNKNOWN = 40
    MESSAGE_UNKNOWN = 41
    DELAY_INVALID = 42
    ROW_CHANGED = 43
    GROUP_IN_USE = 44
    SESSION_FENCED = 45
    NOT_LEADER = 46
    NOT_ENOUGH_REPLICAS = 47
    ASK_REPLICA = 48
    QUOTA_EXCEEDED = 49
    MESSAGE_TOO_SMALL = 50
    BROKER_FORGOTTEN = 51


class CodeInfo(NamedTuple):
    """What a client needs to know of a code."""

    retriable: bool
    meaning: str


CODES: Final[dict[Code, CodeInfo]] = {
    Code.OK: CodeInfo(False, "success"),
    Code.SYSTEM_ERROR: CodeInfo(False, "the server failed; its log has the cause"),
    Code.BUSY: CodeInfo(True, "the server is under pressure; back off and try again"),
    Code.UNKNOWN_REQUEST: CodeInfo(False, "the server does not know this request code"),
    Code.PROTOCOL_ERROR: CodeInfo(False, "the frame or its header cannot be parsed"),
    Code.MISSING_FIELD: CodeInfo(False, "a required field is missing or has the wrong type"),
    Code.NOT_PERMITTED: CodeInfo(False, "these credentials do not allow this"),
    Code.HELLO_REQUIRED: CodeInfo(False, "the first request of a connection must be HELLO"),
    Code.VERSION_UNSUPPORTED: CodeInfo(False, "the protocol version is not spoken here"),
    Code.BODY_CRC: CodeInfo(True, "the body was damaged on its way"),
    Code.MALFORMED_BATCH: CodeInfo(False, "a record of the batch is malformed; the remark names it"),
    Code.RECORD_TOO_LARGE: CodeInfo(False, "a record is larger than record_max_bytes"),
    Code.BROKER_FORGOTTEN: CodeInfo(False, "this broker was given up; begin anew with an empty directory"),
    Code.MESSAGE_TOO_SMALL: CodeInfo(False, "a message is smaller than message_bytes_min"),
    Code.TOPIC_UNKNOWN: CodeInfo(False, "no such topic, and it may not be created by use"),
    Code.TOPIC_INVALID: CodeInfo(False, "not a topic name that a client may use"),
    Code.TOPIC_LIMIT: CodeInfo(False, "topics_max is reached"),
    Code.TOPIC_EXISTS: CodeInfo(False, "the topic exists with other settings"),
    Code.TOPIC_PERM: CodeInfo(False, "the topic's perm does not allow this"),
    Code.QUEUE_UNKNOWN: CodeInfo(True, "the topic has no such queue here: refresh the route"),
    Code.OUT_OF_SEQUENCE: CodeInfo(True, "an earlier batch of this producer is missing: resend in order"),
    Code.PRODUCER_FENCED: CodeInfo(False, "a newer epoch of this producer exists"),
    Code.STORE_FULL: CodeInfo(True, "no space on the disk: free space; service resumes by itself"),
    Code.STORE_READ_ONLY: CodeInfo(False, "the disk failed; the broker is read-only until it is restarted"),
    Code.STORE_FAILED: CodeInfo(True, "the write failed; nothing of the batch is stored"),
    Code.CORRUPT: CodeInfo(False, "the log is damaged at this offset; go on after it"),
    Code.OFFSET_AHEAD: CodeInfo(False, "the position is past the end; the answer says where to continue"),
    Code.OFFSET_BEHIND: CodeInfo(False, "retention passed this offset; the answer has the first offset"),
    Code.FILTER_UNKNOWN: CodeInfo(True, "no such filter on this connection: register it again"),
    Code.READER_UNKNOWN: CodeInfo(True, "no such reader on this connection: open it again"),
    Code.LIMIT_EXCEEDED: CodeInfo(False, "a named limit is reached; the remark names it"),
    Code.SHUTTING_DOWN: CodeInfo(True, "the server is draining: use another, or try again"),
    Code.TAG_INVALID: CodeInfo(False, "a tag that no MQTT topic could have"),
    Code.UNAUTHENTICATED: CodeInfo(False, "the credentials are missing, unknown or wrong"),
    Code.TOPIC_PAUSED: CodeInfo(True, "the topic is paused: it keeps what it has and delivers nothing"),
    Code.TOPIC_IN_USE: CodeInfo(False, "a step of a safe removal whose condition does not hold yet"),
    Code.KIND_UNFIT: CodeInfo(False, "topics of this kind cannot do this"),
    Code.GROUP_UNKNOWN: CodeInfo(False, "no such consumer group here"),
    Code.GROUP_INVALID: CodeInfo(False, "not a group name that a client may use"),
    Code.GROUP_DISABLED: CodeInfo(False, "the group's consumeEnable is off"),
    Code.GROUP_FENCED: CodeInfo(True, "an older generation of a queue's lease: ask for the lease again"),
    Code.MODE_CONFLICT: CodeInfo(False, "the group has members that consume in another mode"),
    Code.RECEIPT_UNKNOWN: CodeInfo(False, "the delivery ended: its deadline passed or it was settled"),
    Code.MESSAGE_UNKNOWN: CodeInfo(False, "no such message: it never was, or retention removed it"),
    Code.GROUP_IN_USE: CodeInfo(False, "the group has members: stop them first"),
    Code.DELAY_INVALID: CodeInfo(False, "a delay that this broker does not take"),
    Code.SESSION_FENCED: CodeInfo(False, "the session was opened anew elsewhere, or ended"),
    Code.NOT_LEADER: CodeInfo(True, "another replica leads this broker's shard: refresh the route"),
    Code.NOT_ENOUGH_REPLICAS: CodeInfo(True, "too few copies are in sync to acknowledge: try again"),
    Code.ASK_REPLICA: CodeInfo(False, "a replica in sync has it: ask the one that the answer names"),
    Code.QUOTA_EXCEEDED: CodeInfo(False, "a quota is used up; the remark says whose, of what, what to do"),
    Code.ROW_CHANGED: CodeInfo(False, "the row has another version than the expected one: read it again"),
}


def code_of(status: int) -> Code:
    """The code of a status on the wire; SYSTEM_ERROR for one that only a newer peer knows."""
    try:
        return Code(status)
    except ValueError:
        return Code.SYSTEM_ERROR


class HoldMQError(Exception):
    """The root: everything HoldMQ raises on purpose is one of these."""

    code: Code = Code.SYSTEM_ERROR

    @property
    def retriable(self) -> bool:
        """Whether the same request may succeed later without anybody's help."""
        return CODES[self.code].retriable


class UsageError(HoldMQError):
    """The caller broke an API's contract; fix the call."""


class ConfigError(HoldMQError):
    """A configuration key, file or flag is wrong; the message names it."""


class StartupError(HoldMQError):
    """A process cannot start; the message says why and what to do."""


class PeerError(HoldMQError):
    """What a peer sent breaks a protocol: answer with the code, then close."""

    code = Code.PROTOCOL_ERROR


class WireError(PeerError):
    """A frame, command header or typed header that cannot be parsed."""

    def __init__(self, message: str, code: Code = Code.PROTOCOL_ERROR) -> None:
        super().__init__(message)
        self.code = code


class RecordError(HoldMQError):
    """Bytes that are no valid record, or fields that no record can hold."""

    def __init__(self, message: str, code: Code = Code.MALFORMED_BATCH) -> None:
        super().__init__(message)
        self.code = code


class StorageError(HoldMQError):
    """An operation of the store failed.

    `operation` is the verb (write, fsync, open …), `path` the file, `offset` the position in
    the log or file (None where there is none), `hint` what the operator can do.
    """

    code = Code.STORE_FAILED

    def __init__(
        self, message: str, *, operation: str, path: str = "", offset: int | None = None, hint: str = ""
    ) -> None:
        where = f" of {path}" if path else ""
        at = f" at offset {offset}" if offset is not None else ""
        tail = f"; {hint}" if hint else ""
        super().__init__(f"{operation}{where}{at} failed: {message}{tail}")
        self.operation = operation
        self.path = path
        self.offset = offset
        self.hint = hint


class StoreFullError(StorageError):
    """ENOSPC or EDQUOT: refused; service resumes by itself when space returns."""

    code = Code.STORE_FULL


class StoreReadOnlyError(StorageError):
    """EIO or a failed fsync: the store is read-only until the process is restarted."""

    code = Code.STORE_READ_ONLY


class ShardLostError(StorageError):
    """The shard belongs to another process now, or the servers behind it lost writes: it is opened anew.

    What was being appended may be stored: it is sent again with its sequences, to whoever has the shard.
    """

    code = Code.BUSY


class NotLeaderError(StorageError):
    """This replica does not lead its shard, or has stopped to: nothing is stored, ask who leads."""

    code = Code.NOT_LEADER


class FewReplicasError(StorageError):
    """Fewer copies follow this leader than it needs to acknowledge: nothing is stored, ask again later."""

    code = Code.NOT_ENOUGH_REPLICAS


class StoreFormatError(StorageError):
    """A data directory, file or format version that must not be opened as it is."""


class CorruptRecordError(StorageError):
    """Damage below the checkpoint: it is reported, never cut; reading goes on at `resume_at`."""

    code = Code.CORRUPT
    resume_at: int = -1


class CoordinatorError(HoldMQError):
    """The coordinator gave no answer that tells whether a call took effect, or that it did not.

    Whoever called believes nothing until he has read again: the call may have taken effect, and while its
    version is the current one it may yet. `operation` is the call, `hint` what the operator can do.
    """

    code = Code.BUSY

    def __init__(self, message: str, *, operation: str, hint: str = "") -> None:
        tail = f"; {hint}" if hint else ""
        super().__init__(f"{operation} at the coordinator has an unknown outcome: {message}{tail}")
        self.operation = operation
        self.hint = hint


class ShardStateError(HoldMQError):
    """A state of a shard that this version does not understand, or that is no state; nothing acts on it."""


class TransportError(HoldMQError):
    """No connection to the peer, or it was lost before the answer came."""

    code = Code.BUSY


class RequestTimeout(TransportError):
    """No answer within the deadline; whether the request took effect is unknown."""


class LeadLostError(TransportError):
    """The peer answered that it does not lead its shard (any more): the connection ends, the route moves on.

    Whether an unanswered request took effect is unknown, as with any connection that is lost.
    """

    code = Code.NOT_LEADER


class RemoteError(HoldMQError):
    """A peer answered a request with an error code and a remark.

    `ext_fields` are what the answer says beyond them (OFFSET_AHEAD: `position` and `log_epoch` where to
    continue).
    """

    def __init__(self, code: Code, remark: str, ext_fields: dict[str, Any] | None = None) -> None:
        super().__init__(f"{code.name}: {remark or CODES[code].meaning}")
        self.code = code
        self.remark = remark
        self.ext_fields = ext_fields or {}

    @classmethod
    def of_status(cls, status: int, remark: str) -> RemoteError:
        """The error for a status in an answer's row; the text names one that only a newer peer knows."""
        code = code_of(status)
        return RemoteError(code, remark if code == status else f"status {status}: {remark}")


class BusyError(RemoteError):
    """The peer is under pressure: wait `retry_after_ms` (with jitter), then try again."""

    def __init__(self, remark: str, retry_after_ms: int) -> None:
        super().__init__(Code.BUSY, remark, {"retry_after_ms": retry_after_ms})
        self.retry_after_ms = retry_after_ms


class BehindError(StorageError):
    """Retention has passed a position of the log; reading goes on at `resume_at`."""

    code = Code.OFFSET_BEHIND

    def __init__(self, position: int, resume_at: int) -> None:
        super().__init__(
            f"retention has passed it; the log begins at {resume_at}", operation="read", offset=position
        )
        self.resume_at = resume_at


class OffsetError(HoldMQError):
    """A queue cannot be read at a consumer's position; seek, to `next_offset` or elsewhere.

    `code` is OFFSET_AHEAD, OFFSET_BEHIND or CORRUPT; `queue` names the queue.
    """

    def __init__(self, code: Code, queue: str, offset: int, next_offset: int) -> None:
        super().__init__(
            f"{code.name}: {queue} at offset {offset}: {CODES[code].meaning}; continue at {next_offset}"
        )
        self.code = code
        self.queue = queue
        self.offset = offset
        self.next_offset = next_offset


class BatchError(HoldMQError):
    """Some messages of a batch were not stored; `results` has, per message, its result or its error."""

    def __init__(self, results: list[object]) -> None:
        errors = [result for result in results if isinstance(result, HoldMQError)]
        super().__init__(f"{len(errors)} of {len(results)} messages were not stored; the first: {errors[0]}")
        self.code = errors[0].code
        self.results = results
