"""What a replica's core asks its shell to do: each once, in this order. Answers come back as calls."""

from __future__ import annotations

from typing import NamedTuple

from broker.replication.core.messages import CopyFetch, CopyHello, CopyQuestion, FetchGrant
from holdmq.coordination.api import ShardState


class ReadState(NamedTuple):
    """Read S and L from the coordinator; then `Replica.was_read`."""


class Propose(NamedTuple):
    """Compare-and-set S against `version`; then `Replica.was_proposed`."""

    version: int
    state: ShardState


class HoldLease(NamedTuple):
    """Take or renew L; then `Replica.was_held` with the time before the call was sent."""


class GiveUpLease(NamedTuple):
    """Give L back, only the acquisition that is held now."""


class BeginEpoch(NamedTuple):
    """Write (epoch, end of the log) durably, before anything is appended; then `Replica.epoch_begun`,
    or `Replica.epoch_refused` when the disk is full."""

    epoch: int


class CutLog(NamedTuple):
    """Cut the log at `position` and keep its first `epochs_kept` epochs; then `Replica.was_cut`."""

    position: int
    epochs_kept: int


class StartOver(NamedTuple):
    """Give up the whole log, and begin an empty one of that store at `position`; then `Replica.was_cut`.

    The epochs that began at or below the position are the leader's.
    """

    store_id: bytes
    position: int


class Say(NamedTuple):
    """Send a message to another replica; its answer comes by `Replica.answered`."""

    peer: str
    message: CopyHello | CopyFetch | CopyQuestion


class AnswerFetch(NamedTuple):
    """Answer the fetch `number` of a copy: read the bytes, then send both."""

    peer: str
    number: int
    grant: FetchGrant


class EndLeading(NamedTuple):
    """Make the log a copy again once nobody uses it as a leader's; then `Replica.was_cut`."""


class TakeBytes(NamedTuple):
    """Append the bytes of the answer that is being handled; they begin at `position`, the log's end."""

    position: int


class ConfirmTo(NamedTuple):
    """Everything below `limit` is confirmed."""

    limit: int


class Serve(NamedTuple):
    """Open for service as the leader of `epoch`."""

    epoch: int


class Cease(NamedTuple):
    """Close the service: clients look for another leader. Nothing is handed out any more."""

    reason: str


class StopAppends(NamedTuple):
    """Take no more records: the lead is about to be handed over."""


class RefuseAppends(NamedTuple):
    """Refuse records from now on, until `TakeAppends` or the next `Serve`: nothing would be acknowledged.

    Only `following` members have what this log has.
    """

    following: int


class TakeAppends(NamedTuple):
    """Take records again: enough members follow."""


class Trust(NamedTuple):
    """Note durably that this copy has everything that it can ever have acknowledged."""


class Distrust(NamedTuple):
    """Note durably that this copy may lack what it has acknowledged.

    It must not lead before it is trusted again.
    """

    reason: str


Action = (
    ReadState
    | Propose
    | HoldLease
    | GiveUpLease
    | BeginEpoch
    | CutLog
    | StartOver
    | Say
    | AnswerFetch
    | EndLeading
    | TakeBytes
    | ConfirmTo
    | Serve
    | Cease
    | StopAppends
    | RefuseAppends
    | TakeAppends
    | Trust
    | Distrust
)
