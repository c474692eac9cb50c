"""A copy: finds where its log parts from the leader's, cuts what is too much, and fetches what follows.

Two fetches may be under way: one that waits for bytes, and one that acknowledges what was just written. Each
epoch of the leader is noted durably where it begins before anything of it is acknowledged, so that a leader
of an older epoch is refused from then on.
"""

from __future__ import annotations

from broker.replication.core.actions import (
    Action,
    BeginEpoch,
    ConfirmTo,
    CutLog,
    ReadState,
    Say,
    StartOver,
    TakeBytes,
    Trust,
)
from broker.replication.core.log_view import LogView
from broker.replication.core.messages import CopyFetch, CopyHello, CopyWelcome, FetchGrant, Refused
from broker.replication.core.prefix import common_prefix, next_epoch
from broker.replication.core.settings import ReplicaSettings

OUTSTANDING_MAX = 2
"""Fetches under way: one that waits for bytes, and one that acknowledges what was written meanwhile."""


class Copying:
    """A replica that follows `leader` in `epoch`, from its hello on.

    `ended_why` is set when the leader refuses it; `take_over` when the leader asks it to lead.
    """

    def __init__(
        self,
        settings: ReplicaSettings,
        leader: str,
        epoch: int,
        session: int,
        log: LogView,
        now: float,
        read_address: str = "",
    ) -> None:
        self.leader = leader
        self.epoch = epoch
        self.ended_why = ""
        self.needs = ""
        """The first release that the leader asks for, as this one cannot read its log."""
        self.take_over = False
        self.is_fetching = False
        self._settings = settings
        self._session = session
        self._read_address = read_address
        self._log = log
        self._leader_epochs: CopyWelcome | None = None
        self.position = log.written
        self._confirmed = 0
        self._outstanding = 0
        self._heard_at = now
        self._asked: tuple[int, int] = (-1, -1)
        self._is_changing_log = False
        self._is_trusting = False

    def begin(self) -> list[Action]:
        """Say hello to the leader."""
        log = self._log
        hello = CopyHello(
            self.epoch,
            log.store_id,
            self._session,
            tuple(log.epochs),
            log.written,
            log.confirmed,
            log.is_whole,
            self._settings.format_level,
            self._read_address,
        )
        return [Say(self.leader, hello)]

    def may_read(self, now: float) -> bool:
        """Whether this copy knows its leader's epoch, follows it, and has heard of it lately."""
        return (
            self.is_fetching
            and not self._is_changing_log
            and not self.ended_why
            and not self.take_over
            and self._log.last_epoch == self.epoch
            and now - self._heard_at <= self._settings.lag_s
        )

    def tick(self, now: float) -> list[Action]:
        """A leader that does not answer is left alone until the state has been read again."""
        limit_s = self._settings.timeout_s + self._settings.hold_s
        if not self._is_changing_log and now - self._heard_at > limit_s:
            self.ended_why = f"{self.leader} does not answer"
        return []

    def welcomed(self, now: float, welcome: CopyWelcome) -> list[Action]:
        """The leader's log is known: cut, start over, or fetch."""
        if welcome.session != self._session or self._leader_epochs is not None:
            return []
        self._heard_at = now
        self._leader_epochs = welcome
        log = self._log
        is_other = log.store_id != welcome.store_id
        if is_other and log.written > log.first:
            self.ended_why = "this log is another store's"
            return []
        common = common_prefix(log.epochs, log.written, welcome.epochs, welcome.end)
        if not is_other and common.end < log.confirmed:
            self.ended_why = f"{self.leader} lacks what is confirmed here"
            return []
        if is_other or common.end < welcome.first:
            self._is_changing_log = True
            return [StartOver(welcome.store_id, welcome.first)]
        if common.end < log.written or common.epochs < len(log.epochs):
            self._is_changing_log = True
            return [CutLog(common.end, common.epochs)]
        return self._fetch()

    def was_cut(self, now: float, log: LogView) -> list[Action]:
        """The log was cut or started over."""
        self._heard_at = now
        self._is_changing_log = self._is_trusting = False
        self._log = log
        self.position = log.written
        return self._fetch()

    def epoch_begun(self, now: float, log: LogView) -> list[Action]:
        """The epoch that begins at the log's end is durable."""
        return self.was_cut(now, log)

    def log_moved(self, now: float, log: LogView) -> list[Action]:
        """What was fetched is written, or durable."""
        self._log = log
        if log.is_whole:
            self._is_trusting = False
        if not self.is_fetching or self._is_changing_log:
            return []
        return [*self._confirm(), *self._fetch()]

    def _confirm(self) -> list[Action]:
        limit = min(self._confirmed, self._log.durable)
        if limit <= self._log.confirmed:
            return []
        self._log = self._log._replace(confirmed=limit)
        return [ConfirmTo(limit)]

    def _fetch(self) -> list[Action]:
        """Ask for more, and acknowledge, if there is something new to ask or to acknowledge."""
        leader = self._leader_epochs
        if leader is None or self._is_changing_log or self.ended_why:
            return []
        self.is_fetching = True
        log = self._log
        following = next_epoch(leader.epochs, log.last_epoch)
        if following is not None and following.start <= self.position:
            if log.durable < self.position:
                return []
            self._is_changing_log = True
            return [BeginEpoch(following.epoch)]
        asked = (self.position, log.durable)
        if self._outstanding >= OUTSTANDING_MAX or (self._outstanding and asked == self._asked):
            return []
        self._outstanding += 1
        self._asked = asked
        return [Say(self.leader, CopyFetch(self.epoch, self._session, self.position, log.durable))]

    def granted(self, now: float, grant: FetchGrant, size: int) -> list[Action]:
        """The leader answers a fetch with `size` bytes."""
        if grant.session != self._session:
            return []
        self._heard_at = now
        self._outstanding -= 1
        actions: list[Action] = []
        if grant.first > self.position:
            self.ended_why = f"{self.leader} has no more what follows {self.position}"
            return [ReadState()]
        if size and grant.position == self.position and not self._is_changing_log:
            self.position += size
            actions.append(TakeBytes(grant.position))
        self._confirmed = max(self._confirmed, grant.confirmed)
        if grant.is_whole and not self._log.is_whole and not self._is_trusting:
            # It is noted on disk: until the log shows it, every further answer says the same.
            self._is_trusting = True
            actions.append(Trust())
        self.take_over = self.take_over or grant.take_over
        return [*actions, *self._confirm(), *self._fetch()]

    def refused(self, refused: Refused) -> list[Action]:
        """Note that the replica does not lead, or does not know this session."""
        self.ended_why = f"{self.leader} refuses: its epoch is {refused.epoch}"
        self.needs = refused.needs
        return [ReadState()]

    def unanswered(self) -> list[Action]:
        """A message got no answer."""
        self.ended_why = f"{self.leader} does not answer"
        return []

    def bytes_refused(self, reason: str) -> list[Action]:
        """The log did not take the bytes: they are damaged, or do not follow."""
        self.ended_why = f"bytes of {self.leader} were refused: {reason}"
        return []
