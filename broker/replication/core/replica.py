"""One replica of a shard: waits, follows, campaigns, leads.

::

    WAITING ──► COPYING ──► CAMPAIGNING ──► PROMOTING ──► LEADING
       ▲           │             │                           │
       └───────────┴─────────────┴───────────────────────────┘

Who leads is S in the coordinator, and the lead is won in one way only: a compare-and-set of this very
process that names this replica and the next epoch. A replica that finds its name in S after a restart wins it
again. Source: PacificA (MSR-TR-2008-25); the coordinator decides who, the leader and its copies move the
data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum

from broker.replication.core.actions import (
    Action,
    BeginEpoch,
    CutLog,
    Distrust,
    EndLeading,
    GiveUpLease,
    HoldLease,
    Propose,
    ReadState,
    StartOver,
    Trust,
)
from broker.replication.core.copying import Copying
from broker.replication.core.founding import Founding
from broker.replication.core.in_sync_set import InSyncSet
from broker.replication.core.leading import Leading
from broker.replication.core.lease import LeadLease
from broker.replication.core.log_view import LogView
from broker.replication.core.messages import (
    CopyFetch,
    CopyHello,
    CopyReport,
    CopyWelcome,
    FetchGrant,
    Refused,
)
from broker.replication.core.settings import ReplicaSettings
from holdmq.coordination.api import ShardSnapshot, ShardState


class ReplicaRole(Enum):
    """What a replica does now."""

    WAITING = "waiting"
    COPYING = "copying"
    CAMPAIGNING = "campaigning"
    PROMOTING = "promoting"
    LEADING = "leading"
    ENDED = "ended"


class Replica:
    """The core of one replica. Each method returns the actions to do, in order; their answers come as calls.

    `replicas` are all replicas of the shard, this one too; the first is who founds it. `new_session`
    gives a number that no earlier session of this replica had; `read_address` is where clients may read
    from it while it copies, "" = nowhere. `now` is a clock that never goes back
    and counts while the machine sleeps, in seconds.
    """

    def __init__(
        self,
        settings: ReplicaSettings,
        replica: str,
        replicas: Sequence[str],
        log: LogView,
        new_session: Callable[[], int],
        read_address: str = "",
    ) -> None:
        self.role = ReplicaRole.WAITING
        self.state: ShardState | None = None
        self.leading: Leading | None = None
        self.copying: Copying | None = None
        self.lease = LeadLease(settings)
        self.outdated = ""
        """Why this release can be no replica of the shard any more, and which one can; "" = it can."""
        self._settings = settings
        self._replica = replica
        self._replicas = tuple(replicas)
        self.log = log
        self._new_session = new_session
        self._read_address = read_address
        self._founding: Founding | None = None
        self._is_reading = False
        self._is_news_missed = False
        self._is_changing_log = False
        self._read_at = float("-inf")
        self._read_ok_at = float("-inf")
        self._began_at: float | None = None
        self._free_since: float | None = None
        self._rests_until = float("-inf")
        self._is_asked_to_lead = False
        self._accepts_loss = False
        self._acquisition = ""
        self._wanted: ShardState | None = None
        self._wanted_version = 0
        self._is_proposing = False
        self._highest_epoch = 0
        self._campaign_ends_at = 0.0

    # What the broker asks

    def may_hand_out(self, now: float) -> bool:
        """Whether what needs no write (reads, leases of queues, shared hand-outs) may leave now."""
        return self.owned_for_s(now) > 0

    def owned_for_s(self, now: float) -> float:
        """For how long, in seconds, surely no other replica serves; 0 = this one does not, or not surely."""
        leading = self.leading
        if self.role is not ReplicaRole.LEADING or leading is None or not leading.is_serving:
            return 0.0
        return max(0.0, self.lease.valid_until - now)

    def may_read(self, now: float) -> bool:
        """Whether clients may read here, up to what this copy knows to be confirmed, though another leads.

        No clock decides what they read: what is confirmed stays. Any doubt sends them back to the leader all
        the same, as it alone knows what was deleted or paused, and who may read.
        """
        copying, state = self.copying, self.state
        return (
            self.role is ReplicaRole.COPYING
            and copying is not None
            and state is not None
            and (state.leader, state.epoch) == (copying.leader, copying.epoch)
            and self._replica in state.in_sync
            and self.log.is_whole
            and not self._is_changing_log
            and self._free_since is None
            and now - self._read_ok_at <= self._settings.ttl_s
            and copying.may_read(now)
        )

    @property
    def may_append(self) -> bool:
        """Whether records are taken: it leads, serves, is followed, and does not hand the lead over."""
        leading = self.leading
        return (
            leading is not None and leading.is_serving and not leading.switching_to and not leading.is_short
        )

    @property
    def leader(self) -> str:
        """The replica that leads, as far as is known; "" = none."""
        return "" if self.state is None else self.state.leader

    def is_leaderless(self, now: float) -> bool:
        """Whether nobody has served for longer than a failover takes, as far as this replica can see.

        It sees that nobody holds L, that it cannot read S, and that it leads itself and may not serve.
        """
        failover_s = self._settings.ttl_s / 2
        if self._began_at is None:
            return False
        # The first read has as much time as every other one.
        if now - max(self._read_ok_at, self._began_at) > self._settings.ttl_s:
            return True
        if self.leading is not None and self.leading.waits_s(now) > failover_s:
            return True
        return self._free_since is not None and now - self._free_since > failover_s

    # Time

    def tick(self, now: float) -> list[Action]:
        """What is due: to be called a few times per second."""
        if self.role is ReplicaRole.ENDED:
            return []
        if self._began_at is None:
            self._began_at = now
        actions: list[Action] = []
        if self.leading is not None:
            actions += self.leading.tick(now)
        if self.copying is not None:
            actions += self.copying.tick(now)
        if self._founding is not None:
            actions += self._founding.tick(now)
        if self.role is ReplicaRole.CAMPAIGNING and now >= self._campaign_ends_at and not self._is_proposing:
            actions += self._give_up_campaign(now)
        # While nobody holds L, or nobody is followed, S is looked at more often.
        is_idle = not self.outdated and (
            self.role is ReplicaRole.WAITING or (self._free_since is not None and self.leading is None)
        )
        if now >= self._read_at + (self._settings.look_s if is_idle else self._settings.read_s):
            actions.append(ReadState())
        return self._done(now, actions)

    def state_changed(self, now: float) -> list[Action]:
        """The coordinator says that S or L has changed."""
        # A read that is under way may have passed S before it changed.
        self._is_news_missed = self._is_reading
        return self._done(now, [ReadState()])

    def log_moved(self, now: float, log: LogView) -> list[Action]:
        """Something was appended, written, made durable or confirmed in this replica's log."""
        self.log = log
        actions: list[Action] = []
        if self.leading is not None:
            actions += self.leading.log_moved(now, log)
        if self.copying is not None:
            actions += self.copying.log_moved(now, log)
        return self._done(now, actions)

    def failed(self, now: float, reason: str) -> list[Action]:
        """The log has failed for good: this replica does nothing more until it is started again."""
        actions: list[Action] = []
        if self.leading is not None:
            actions += self.leading.resign(reason)
        elif self._acquisition:
            actions.append(GiveUpLease())
        self.role = ReplicaRole.ENDED
        self.leading = self.copying = None
        return actions

    # The coordinator

    def was_read(self, now: float, snapshot: ShardSnapshot | None) -> list[Action]:
        """S and L as they were since the read was sent; None = it was not answered in time."""
        self._is_reading = False
        actions = self._was_read(now, snapshot)
        if self._is_news_missed:
            self._is_news_missed = False
            actions += self._done(now, [ReadState()])
        return actions

    def _was_read(self, now: float, snapshot: ShardSnapshot | None) -> list[Action]:
        if snapshot is None or self.role is ReplicaRole.ENDED:
            return self._done(now, [])
        state = snapshot.state
        self._read_ok_at = now
        if snapshot.holder:
            self._free_since = None
        elif self._free_since is None:
            self._free_since = now
        if self.role is ReplicaRole.LEADING:
            assert self.leading is not None
            actions = self.leading.was_read(now, self._read_at, snapshot)
            if not self.leading.ended_why or state is not None:
                self._note(state)
            return self._done(now, actions)
        if self.role is ReplicaRole.PROMOTING:
            return self._done(now, [])
        self._note(state)
        if self.role is ReplicaRole.CAMPAIGNING:
            return self._done(now, self._campaign(now, snapshot))
        return self._done(now, self._place(now, snapshot))

    def _note(self, state: ShardState | None) -> None:
        self.state = state
        if state is None:
            return
        self._highest_epoch = max(self._highest_epoch, state.epoch)
        if state.format_level <= self._settings.format_level:
            self.outdated = ""
        elif not self.outdated:
            self._note_outdated(state, "")

    def _note_outdated(self, state: ShardState, release: str) -> None:
        """Say what this release lacks; `release` is the first that has it, "" = nobody has said."""
        needed = f"HoldMQ {release} or newer" if release else f"the release that {state.leader} runs"
        self.outdated = (
            f"the shard's log may hold what format level {state.format_level} has added, and this release "
            f"reads level {self._settings.format_level}: it can neither lead nor follow; upgrade this "
            f"replica to {needed}"
        )

    def was_held(self, now: float, sent_at: float, acquisition: str) -> list[Action]:
        """L was asked for by a call sent at `sent_at`; "" = not held, or not answered.

        The acquisition stays the same as long as nobody else can have held L.
        """
        if self.leading is not None:
            return self._done(now, self.leading.was_held(now, sent_at, acquisition))
        actions: list[Action] = []
        if self.role is ReplicaRole.CAMPAIGNING:
            if acquisition:
                self._acquisition = acquisition
                self.lease.held(sent_at)
                actions.append(ReadState())
            elif self._is_asked_to_lead:
                actions.append(HoldLease())
            else:
                actions += self._give_up_campaign(now)
        elif acquisition and self.role is not ReplicaRole.PROMOTING:
            actions.append(GiveUpLease())
        return self._done(now, actions)

    def was_proposed(
        self, now: float, state: ShardState, version: int | None, is_known: bool
    ) -> list[Action]:
        """The answer to a proposal: its version, None = somebody was quicker; not `is_known` = none came."""
        if self.role is ReplicaRole.LEADING:
            assert self.leading is not None
            return self._done(now, self.leading.was_proposed(now, state, version, is_known))
        if self.role is not ReplicaRole.CAMPAIGNING or state != self._wanted:
            # Of a lead or campaign that is over: it would be won with an epoch that the log has.
            return self._done(now, [])
        self._is_proposing = False
        if version is not None:
            return self._done(now, self._won(now, state, version))
        if is_known:
            return self._done(now, [*self._give_up_campaign(now), ReadState()])
        return self._done(now, [ReadState()])

    # Where this replica belongs

    def _place(self, now: float, snapshot: ShardSnapshot) -> list[Action]:
        """Follow, campaign, found, or wait, by S and L."""
        state = snapshot.state
        if self._is_changing_log:
            return []
        if self._accepts_loss and not self.outdated:
            self.copying = None
            return self._stand(now, snapshot) if self.log.is_settled else []
        if state is None:
            self.copying = None
            self.role = ReplicaRole.WAITING
            if self._founding is None and self._replica == self._replicas[0] and self._may_found():
                self._founding = Founding(self._replica, self._replicas, self._settings, now)
                return self._founding.begin()
            return []
        self._founding = None
        if state.epoch < max(self._highest_epoch, self.log.last_epoch):
            # The coordinator was restored: whoever leads says again what S is, or an operator does.
            self.copying = None
            self.role = ReplicaRole.WAITING
            return []
        if self.outdated and self.copying is not None and self.copying.is_fetching:
            self.copying = None
            self.role = ReplicaRole.WAITING
        if self._must_stand(now, state):
            return self._stand(now, snapshot)
        if state.leader == self._replica:
            self.copying = None
            self.role = ReplicaRole.WAITING
            return []
        if self.copying is not None and (self.copying.leader, self.copying.epoch) == (
            state.leader,
            state.epoch,
        ):
            return []
        if now < self._rests_until or not self.log.is_settled:
            return []
        self.role = ReplicaRole.COPYING
        self.copying = Copying(
            self._settings,
            state.leader,
            state.epoch,
            self._new_session(),
            self.log,
            now,
            self._read_address,
        )
        return self.copying.begin()

    def _must_stand(self, now: float, state: ShardState) -> bool:
        """Whether this replica is to win the lead: it is a member and intact, and nobody holds L."""
        if self._replica not in state.in_sync or not self.log.is_whole or self.log.is_stuck or self.outdated:
            return False
        if self.log.written < state.confirmed:
            return False
        if self._free_since is None or now < self._rests_until or not self.log.is_settled:
            return False
        order = sorted(state.in_sync)
        after = order.index(state.leader) + 1 if state.leader in order else 0
        place = (order.index(self._replica) - after) % len(order)
        wait_s = place * self._settings.stagger_s
        if self.copying is not None:
            # A leader that still answers has given L up for another one, or takes it again.
            wait_s += self._settings.switch_s
        return now - self._free_since >= wait_s

    def _stand(self, now: float, snapshot: ShardSnapshot) -> list[Action]:
        """Stop to fetch, and take L."""
        self.copying = None
        self.role = ReplicaRole.CAMPAIGNING
        self._acquisition = ""
        self._wanted = None
        self._is_proposing = False
        self._campaign_ends_at = now + self._settings.ttl_s / 2
        return [HoldLease()]

    def _campaign(self, now: float, snapshot: ShardSnapshot) -> list[Action]:
        """S was read while L is held: propose this replica as the leader, or see that it is."""
        state = snapshot.state
        if not self._acquisition or self._is_proposing:
            return []
        if self.outdated:
            return self._give_up_campaign(now)
        wanted = self._wanted
        if wanted is not None and state == wanted:
            return self._won(now, wanted, snapshot.version)
        if wanted is not None and snapshot.version != self._wanted_version:
            return self._give_up_campaign(now)
        if not self._accepts_loss and (
            state is None
            or state.epoch < max(self._highest_epoch, self.log.last_epoch)
            or self._replica not in state.in_sync
            or not self.log.is_whole
        ):
            return self._give_up_campaign(now)
        highest = max(self._highest_epoch, self.log.last_epoch)
        if self._accepts_loss or state is None:
            self._wanted = ShardState(highest + 1, self._replica, (self._replica,), self._first_level(), 0)
        else:
            in_sync = tuple(
                member
                for member in state.in_sync
                if self._is_asked_to_lead or member == self._replica or member != state.leader
            )
            self._wanted = replace(
                state, epoch=max(highest, state.epoch) + 1, leader=self._replica, in_sync=in_sync
            )
        self._wanted_version = snapshot.version
        self._is_proposing = True
        return [Propose(snapshot.version, self._wanted)]

    def _first_level(self) -> int:
        """The level of a lead that follows no other one: what this log may hold."""
        if self.state is not None:
            return self.state.format_level
        levels = self._settings.levels
        return levels[-1].level if self.log.written else levels[0].level

    def _give_up_campaign(self, now: float) -> list[Action]:
        self.role = ReplicaRole.WAITING
        self._is_asked_to_lead = False
        self._wanted = None
        self._rests_until = now + self._settings.stagger_s
        self.lease.end()
        self._acquisition = ""
        return [GiveUpLease()]

    def _won(self, now: float, state: ShardState, version: int) -> list[Action]:
        self.role = ReplicaRole.PROMOTING
        self._note(state)
        self._wanted = state
        self._wanted_version = version
        actions: list[Action] = []
        if self._accepts_loss and not self.log.is_whole:
            actions.append(Trust())
        self._accepts_loss = False
        self._is_asked_to_lead = False
        return [*actions, BeginEpoch(state.epoch)]

    def epoch_begun(self, now: float, log: LogView) -> list[Action]:
        """The epoch is durable in this replica's log."""
        self.log = log
        self._is_changing_log = False
        if self.copying is not None:
            return self._done(now, self.copying.epoch_begun(now, log))
        if self.role is not ReplicaRole.PROMOTING:
            return []
        assert self._wanted is not None
        self.role = ReplicaRole.LEADING
        membership = InSyncSet(self._wanted, self._wanted_version)
        self.leading = Leading(
            self._settings, self._replica, membership, self.lease, self._acquisition, log, now
        )
        return self._done(now, self.leading.tick(now))

    def epoch_refused(self, now: float, reason: str) -> list[Action]:
        """The epoch could not be written, and nothing of it is there: another replica may lead meanwhile."""
        self._is_changing_log = False
        if self.role is ReplicaRole.PROMOTING:
            return self._done(now, self._give_up_campaign(now))
        return self.bytes_refused(now, reason)

    def was_cut(self, now: float, log: LogView) -> list[Action]:
        """The log was cut, or started over."""
        self.log = log
        self._is_changing_log = False
        return [] if self.copying is None else self._done(now, self.copying.was_cut(now, log))

    def _may_found(self) -> bool:
        """Only a shard that was never replicated is founded: S that is lost is for an operator to make."""
        return not self._highest_epoch

    # Other replicas

    def hello(self, now: float, peer: str, hello: CopyHello) -> tuple[CopyWelcome | Refused, list[Action]]:
        """A copy begins to follow."""
        if self.leading is None:
            return self.refusal(), []
        answer, actions = self.leading.hello(now, peer, hello)
        return answer, self._done(now, actions)

    def fetch(
        self, now: float, peer: str, number: int, fetch: CopyFetch
    ) -> tuple[Refused | None, list[Action]]:
        """A copy asks for bytes; None = it is answered by a AnswerFetch of that number."""
        if self.leading is None:
            return self.refusal(), []
        refused, actions = self.leading.fetch(now, peer, number, fetch)
        return refused, self._done(now, actions)

    def report(self) -> CopyReport:
        """What this replica has, for whoever founds the shard."""
        return CopyReport(self.log.store_id, self.log.written, tuple(self.log.epochs))

    def refusal(self) -> Refused:
        """Say that another replica leads, in the highest epoch that is known here."""
        return Refused(max(self._highest_epoch, self.log.last_epoch), self.leader)

    def answered(
        self,
        now: float,
        peer: str,
        answer: CopyWelcome | FetchGrant | Refused | CopyReport | None,
        size: int = 0,
    ) -> list[Action]:
        """A replica answers; None = it does not. `size` bytes came with a grant."""
        actions: list[Action] = []
        copying = self.copying
        if isinstance(answer, CopyReport):
            if self._founding is not None:
                self._founding.reported(peer, answer)
                actions += self._found(now)
        elif copying is not None and peer == copying.leader:
            if isinstance(answer, CopyWelcome):
                actions += copying.welcomed(now, answer)
            elif isinstance(answer, FetchGrant):
                actions += copying.granted(now, answer, size)
                self.log = self.log._replace(appended=max(self.log.appended, copying.position))
                if copying.take_over and not copying.ended_why:
                    actions += self._take_over(now)
            elif isinstance(answer, Refused):
                actions += copying.refused(answer)
            else:
                actions += copying.unanswered()
        return self._done(now, actions)

    def bytes_refused(self, now: float, reason: str) -> list[Action]:
        """The log did not take bytes of the leader, or what it says of them: a new session begins."""
        return [] if self.copying is None else self._done(now, self.copying.bytes_refused(reason))

    def _take_over(self, now: float) -> list[Action]:
        if not self.log.is_whole or not self.log.is_settled or self._is_changing_log:
            return []
        self._is_asked_to_lead = True
        return self._stand(now, ShardSnapshot(self.state, 0, ""))

    def _found(self, now: float) -> list[Action]:
        founding = self._founding
        if founding is None or not founding.is_decided:
            return []
        self._founding = None
        if not founding.may_found:
            return []
        self._accepts_loss = True
        return [ReadState()]

    # An operator

    def switch(self, now: float, to: str) -> list[Action]:
        """Hand the lead to a member, if this replica leads."""
        return [] if self.leading is None else self._done(now, self.leading.switch(now, to))

    def promote(self, now: float) -> list[Action]:
        """Lead whatever may be lost: an operator has said so."""
        if self.outdated or self.role in (ReplicaRole.LEADING, ReplicaRole.PROMOTING, ReplicaRole.ENDED):
            return []
        self._accepts_loss = True
        return self._done(now, [ReadState()])

    # Common ends

    def _done(self, now: float, actions: list[Action]) -> list[Action]:
        """Leave roles that are over, and send one read at a time."""
        leading = self.leading
        if leading is not None and leading.ended_why:
            if leading.is_doubtful and self.log.is_whole:
                actions.append(Distrust(leading.ended_why))
                self.log = self.log._replace(is_whole=False)
            self.leading = None
            self.role = ReplicaRole.WAITING
            self._rests_until = now + self._settings.stagger_s
            actions += [EndLeading(), ReadState()]
        copying = self.copying
        if copying is not None and copying.ended_why:
            self.copying = None
            self.role = ReplicaRole.WAITING
            self._rests_until = now + self._settings.look_s
            if copying.needs and self.state is not None:
                self._note_outdated(self.state, copying.needs)
            if self.outdated:
                self._rests_until = now + self._settings.read_s
        sent: list[Action] = []
        for action in actions:
            if isinstance(action, ReadState):
                if self._is_reading:
                    continue
                self._is_reading = True
                self._read_at = now
            elif isinstance(action, BeginEpoch | CutLog | EndLeading | StartOver):
                self._is_changing_log = True
            sent.append(action)
        return sent
