"""Why a request is not done: one table from what is raised to a status, a code and a sentence."""

from __future__ import annotations

from typing import Final

from starlette.exceptions import HTTPException

from console.identity.accounts import ExistsError, LastAdminError, NotFoundError
from console.identity.identity import SlowDownError, WrongCredentialsError
from console.live.feed import StreamsFullError
from console.sql.box import BoxFullError
from console.sql.saved import QueriesFullError
from holdmq.errors import Code, HoldMQError, RemoteError, StorageError, UsageError
from holdmq.mqtt.reasons import MqttError

UNKNOWN: Final = frozenset({Code.TOPIC_UNKNOWN, Code.GROUP_UNKNOWN, Code.MESSAGE_UNKNOWN, Code.QUEUE_UNKNOWN})
CONFLICTS: Final = frozenset(
    {Code.TOPIC_IN_USE, Code.GROUP_IN_USE, Code.TOPIC_EXISTS, Code.MODE_CONFLICT, Code.ROW_CHANGED,
     Code.TOPIC_PAUSED, Code.GROUP_DISABLED}
)  # fmt: skip
WRONG: Final = frozenset(
    {Code.TOPIC_INVALID, Code.TOPIC_LIMIT, Code.TOPIC_PERM, Code.KIND_UNFIT, Code.GROUP_INVALID,
     Code.LIMIT_EXCEEDED, Code.DELAY_INVALID, Code.TAG_INVALID, Code.RECORD_TOO_LARGE, Code.MISSING_FIELD,
     Code.OFFSET_AHEAD, Code.OFFSET_BEHIND, Code.MESSAGE_TOO_SMALL}
)  # fmt: skip


class RefusedRequest(Exception):
    """A request is answered with this status; `field` names the input that is wrong."""

    def __init__(
        self, status: int, code: str, message: str, field: str | None = None, retry_after_s: int | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.field = field
        self.retry_after_s = retry_after_s


def refusal_of(error: Exception) -> RefusedRequest | None:
    """Return how an error is answered; None for one that nobody expects."""
    text = str(error)
    if isinstance(error, RefusedRequest):
        return error
    if isinstance(error, HTTPException):
        return RefusedRequest(error.status_code, "REFUSED", error.detail)
    if isinstance(error, WrongCredentialsError):
        return RefusedRequest(401, "WRONG_CREDENTIALS", text)
    if isinstance(error, SlowDownError):
        return RefusedRequest(429, "SLOW_DOWN", text, retry_after_s=error.retry_after_s)
    if isinstance(error, NotFoundError):
        return RefusedRequest(404, "NOT_FOUND", text)
    if isinstance(error, ExistsError):
        return RefusedRequest(409, "EXISTS", text)
    if isinstance(error, LastAdminError):
        return RefusedRequest(409, "LAST_ADMIN", text)
    if isinstance(error, BoxFullError):
        return RefusedRequest(503, "BUSY", text, retry_after_s=1)
    if isinstance(error, QueriesFullError):
        return RefusedRequest(503, "BUSY", text)
    if isinstance(error, StreamsFullError):
        return RefusedRequest(503, "STREAMS_FULL", text)
    if isinstance(error, UsageError | MqttError):
        return RefusedRequest(400, "INVALID_ARGUMENT", text)
    return _refusal_of_cluster(error) if isinstance(error, HoldMQError) else None


def _refusal_of_cluster(error: HoldMQError) -> RefusedRequest:
    name, text = error.code.name, str(error)
    if isinstance(error, StorageError):
        return RefusedRequest(503, name, f"the console's files: {text}")
    if isinstance(error, RemoteError):
        said = error.remark or text
        for codes, status in ((UNKNOWN, 404), (CONFLICTS, 409), (WRONG, 400)):
            if error.code in codes:
                return RefusedRequest(status, name, said)
        if error.code in (Code.NOT_PERMITTED, Code.UNAUTHENTICATED):
            hint = "the console's own access key (client.access_key) needs the role admin for this"
            return RefusedRequest(503, name, f"{said}; {hint}")
    return RefusedRequest(503, name, f"the cluster cannot be asked: {text}")
