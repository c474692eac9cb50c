"""Typed headers of tables: the newest value by key of a topic of kind `table`.

A key belongs to one broker, and what that broker says of it counts (holdmq.client.tables). `version` is
the log position of the record that put the row: it rises with every change of a key, and means nothing
at another broker. Answers to TABLE_GET and TABLE_SCAN show every change that was confirmed anywhere
before the request came.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from holdmq.wire.header import Header, header

NO_VALUE: Final = -1
"""As a version and as a length: the key has no value."""


class TableRow(NamedTuple):
    """A key; its value is `length_bytes` of the body, in the order of the rows. -1 = it has no value.

    Of a key without a value `version` is -1, but in TABLE_CHANGED that of the deletion.
    """

    key: str
    version: int
    length_bytes: int


@header
class TableGetRequest(Header):
    """The rows of 1 to 1,000 keys."""

    topic: str
    keys: list[str]


@header
class TableGetResponse(Header):
    """Rows are TableRow, in the order of the keys, as they were at one moment. Body: their values.

    It may cover only the first keys, at least one: ask again for the others.
    """

    rows: list[TableRow]


@header
class TableScanRequest(Header):
    """Rows whose key begins with `prefix`, behind the key `after` (it need not exist; None = from the first).

    In the order of the keys' UTF-8 bytes; a key of more than 367 bytes counts as its first 367 and their
    xxh3-128 digest.
    """

    topic: str
    prefix: str = ""
    after: str | None = None
    max_count: int = 1_000
    max_bytes: int = 4 << 20


@header
class TableScanResponse(Header):
    """Rows are TableRow; `next_after`: ask again behind this key, None = that was all. Body: the values.

    `position`: what lies below it in the log is in these rows.
    """

    rows: list[TableRow]
    next_after: str | None
    position: int


@header
class TableChangeRequest(Header):
    """TABLE_PUT (body: the value) and TABLE_DELETE: answered with TableChanged when it is confirmed.

    `request_id` is unique to this change; the same again, with `is_repeat` from the second time on, is
    answered as the first was, and changes nothing. `if_version`: only if the row has this version, -1 = no
    value (else ROW_CHANGED, with the `version` that it has).
    """

    topic: str
    queue_id: int
    key: str
    request_id: str
    is_repeat: bool = False
    if_version: int | None = None


@header
class TableChanged(Header):
    """`version` of the row that was put, or of the deletion."""

    version: int


@header
class TableWatchRequest(Header):
    """Be told of changes of keys that begin with `prefix`, from now on, as TABLE_CHANGED.

    `watch_id` is the connection's own. Who wants the rows too scans after the answer.
    """

    topic: str
    prefix: str
    watch_id: int


@header
class TableWatching(Header):
    """Answer to TABLE_WATCH. Changes below log position `position` came before, though some may be told."""

    position: int


@header
class TableUnwatchRequest(Header):
    """End a watch; one that is not there is fine."""

    watch_id: int


@header
class TableChangesPush(Header):
    """TABLE_CHANGED (one-way, broker to client): the newest row of each changed key. Body: the values.

    `rescan`: changes could not be told, because this connection did not take them; scan again.
    """

    watch_id: int
    rows: list[TableRow]
    rescan: bool = False
