"""A leader: counts who has what, confirms, keeps the set of members, and hands the lead over.

Confirmed is what every member of every state that S may be in has, while each has enough members. No clock is
needed for that: a deposed leader's members have stopped to fetch from it, and its changes of S are refused.
The lease guards only what leaves without a write.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from broker.replication.core.actions import (
    Action,
    AnswerFetch,
    Cease,
    ConfirmTo,
    GiveUpLease,
    HoldLease,
    Propose,
    ReadState,
    RefuseAppends,
    Serve,
    StopAppends,
    TakeAppends,
)
from broker.replication.core.copies import CopyProgress, HeldFetch
from broker.replication.core.in_sync_set import InSyncSet
from broker.replication.core.lease import LeadLease
from broker.replication.core.levels import release_of
from broker.replication.core.log_view import LogView
from broker.replication.core.messages import CopyFetch, CopyHello, CopyWelcome, FetchGrant, Refused
from broker.replication.core.prefix import common_prefix
from broker.replication.core.settings import ReplicaSettings
from holdmq.coordination.api import ShardSnapshot, ShardState

OFFER_PAUSES_MAX = 8
"""Between two offers of the lead, in times after which the first one is made: readers wait during each."""


class Leading:
    """The lead of one epoch, from the moment the epoch is in this replica's log.

    Every method returns what is to be done. `ended_why` says why the lead is over ("" = it is not), and
    `is_doubtful` that somebody has confirmed records or an epoch that this log lacks.
    """

    def __init__(
        self,
        settings: ReplicaSettings,
        replica: str,
        membership: InSyncSet,
        lease: LeadLease,
        acquisition: str,
        log: LogView,
        now: float,
    ) -> None:
        self.epoch = membership.state.epoch
        self.start = log.written
        self.membership = membership
        self.copies: dict[str, CopyProgress] = {}
        self.is_serving = False
        self.switching_to = ""
        self.has_handed_over = False
        self.ended_why = ""
        self.is_doubtful = False
        self.is_short = False
        """Whether records are refused, as too few members follow to acknowledge any."""
        self._settings = settings
        self._replica = replica
        self._lease = lease
        self._acquisition = acquisition
        self._taken_at: float | None = None
        self._taken_sent_at = 0.0
        self._log = log
        self._began_at = self._waits_since = now
        self._rebuild_from: int | None = None
        self._lost_at = 0.0
        self._changed_at = now
        self._held_at = float("-inf")
        self._must_read = False
        self._noted_at = now
        self._switch_by = float("inf")
        self._refused_before = 0
        self._offer_ends_at = float("-inf")
        self._offer_pause_s = 0.0
        self._is_holding = False
        self._given_up = ""

    @property
    def format_level(self) -> int:
        """The level up to which this leader may write: all members can read it, and S says so."""
        return self.membership.state.format_level

    # What others ask

    def hello(self, now: float, peer: str, hello: CopyHello) -> tuple[CopyWelcome | Refused, list[Action]]:
        """A copy begins a session."""
        log = self._log
        if hello.epochs[-1].epoch > self.epoch:
            return self._refused(), self._doubt("a copy has a later epoch in its log")
        if hello.epoch != self.epoch or self.ended_why:
            return self._refused(), [ReadState()]
        common = common_prefix(hello.epochs, hello.end, log.epochs, log.written)
        is_same = hello.store_id == log.store_id
        if is_same and hello.confirmed > common.end:
            return self._refused(), self._doubt("a copy knows records as confirmed that this log lacks")
        if hello.format_level < self.format_level:
            return self._refused(release_of(self._settings.levels, self.format_level)), []
        before = self.copies.get(peer)
        level_at = self._began_at if before is None else before.level_at
        self.copies[peer] = CopyProgress(
            peer,
            hello.session,
            hello.is_whole and is_same,
            hello.format_level,
            level_at,
            log.written,
            now,
            hello.read_address,
        )
        welcome = CopyWelcome(
            self.epoch, log.store_id, hello.session, tuple(log.epochs), log.first, log.written
        )
        return welcome, []

    def fetch(
        self, now: float, peer: str, number: int, fetch: CopyFetch
    ) -> tuple[Refused | None, list[Action]]:
        """A copy acknowledges and asks for more; None = it is answered by a AnswerFetch, now or later."""
        copy = self.copies.get(peer)
        if fetch.epoch != self.epoch or copy is None or copy.session != fetch.session or self.ended_why:
            return self._refused(), []
        if fetch.position > self._log.written:
            return self._refused(), []
        copy.fetched(fetch, self._log.written, now)
        if copy.acknowledged >= max(self.start, self._log.confirmed):
            copy.is_whole = True
        actions: list[Action] = []
        if copy.held is not None:
            actions.append(self._grant(copy, copy.held, is_empty=True))
        copy.held = HeldFetch(number, fetch, now + self._settings.hold_s)
        return None, actions + self._advance(now)

    def log_moved(self, now: float, log: LogView) -> list[Action]:
        """This replica's own log has more."""
        # The log may show what it was told to confirm a while later: who joins must have that, too.
        self._log = log._replace(confirmed=max(log.confirmed, self._log.confirmed))
        return self._advance(now)

    def _refused(self, needs: str = "") -> Refused:
        return Refused(self.epoch, "" if self.ended_why else self._replica, needs)

    def _grant(self, copy: CopyProgress, held: HeldFetch, is_empty: bool = False) -> AnswerFetch:
        position = held.fetch.position
        limit = self._log.written
        epoch = next(
            (e for e in self._log.epochs if e.start > position), None
        )  # an answer ends where an epoch begins: the copy notes it before it goes on
        if epoch is not None:
            limit = min(limit, epoch.start)
        if is_empty or position < self._log.first:
            limit = position
        return AnswerFetch(
            copy.peer,
            held.number,
            FetchGrant(
                copy.session,
                position,
                limit,
                self._log.confirmed,
                self._log.first,
                copy.is_whole,
                self.has_handed_over and copy.peer == self.switching_to,
            ),
        )

    def readable(self, now: float) -> list[CopyProgress]:
        """Copies that clients may be sent to, by id: members for sure, whole, level a moment ago."""
        if not self.is_serving or not self.membership.is_settled:
            return []
        members = self.membership.state.in_sync
        found = [
            copy
            for copy in self.copies.values()
            if copy.read_address
            and copy.is_whole
            and copy.peer in members
            and not copy.is_behind(now, self._settings.lag_s)
        ]
        return sorted(found, key=lambda copy: copy.peer)

    # What is confirmed

    def _everywhere(self) -> int:
        """What every possible member has; -1 = one of them has not said."""
        everywhere = self._log.durable
        for member in self.membership.members():
            if member != self._replica:
                copy = self.copies.get(member)
                everywhere = min(everywhere, -1 if copy is None else copy.acknowledged)
        return everywhere

    @property
    def has_enough(self) -> bool:
        """Whether S has enough members to acknowledge anything."""
        return self.membership.fewest() >= self._settings.min_in_sync

    def _advance(self, now: float) -> list[Action]:
        """Confirm, serve and answer what can be."""
        if self.ended_why:
            return []
        actions = self._part_from_older()
        everywhere = self._everywhere()
        if self._rebuild_from is None and self.has_enough and everywhere >= self.start:
            if everywhere > self._log.confirmed:
                actions.append(ConfirmTo(everywhere))
                self._log = self._log._replace(confirmed=everywhere)
            if (
                not self.is_serving
                and not self.has_handed_over
                and everywhere >= self._log.confirmed
                and self._lease.is_valid(now)
            ):
                self.is_serving = True
                self.is_short = False
                actions.append(Serve(self.epoch))
        actions += self._admit(now)
        for copy in self.copies.values():
            held = copy.held
            if held is None:
                continue
            is_asked = self.has_handed_over and copy.peer == self.switching_to
            if held.fetch.position < self._log.written or held.fetch.position < self._log.first or is_asked:
                copy.held = None
                actions.append(self._grant(copy, held))
        if self.switching_to and not self.has_handed_over:
            actions += self._hand_over()
        return actions

    def _part_from_older(self) -> list[Action]:
        """End the sessions of copies that cannot read what may be written from now on: no member is one."""
        actions: list[Action] = []
        for copy in [copy for copy in self.copies.values() if copy.format_level < self.format_level]:
            del self.copies[copy.peer]
            if copy.held is not None:
                actions.append(self._grant(copy, copy.held, is_empty=True))
        return actions

    def _admit(self, now: float) -> list[Action]:
        """Refuse records, or take them again, by how many members follow.

        The set alone does not say: nobody leaves it below `min_in_sync`, however long he is gone.
        """
        if not self.is_serving:
            return []
        following = len(self.followers(now))
        is_short = following < self._settings.min_in_sync or not self.has_enough
        if is_short == self.is_short:
            return []
        self.is_short = is_short
        if not is_short:
            return [TakeAppends()]
        self._refused_before = self._log.refused
        return [RefuseAppends(following)]

    # Time

    def tick(self, now: float) -> list[Action]:
        """Deadlines: held fetches, the lease, members that are behind, a switch that does not come about."""
        actions: list[Action] = []
        if self.ended_why:
            return actions
        for copy in self.copies.values():
            if copy.held is not None and now >= copy.held.deadline:
                held, copy.held = copy.held, None
                actions.append(self._grant(copy, held))
        if now >= self._switch_by:
            return actions + self._end(
                f"{self.switching_to} was to take the lead"
                if self.has_handed_over
                else "a switch took too long"
            )
        if (
            not self.has_handed_over
            and not self._log.is_stuck
            and now >= self._held_at + self._settings.renew_s
        ):
            self._held_at = now
            self._is_holding = True
            actions.append(HoldLease())
        actions += self._advance(now)
        alone_s = 2 * self._settings.lag_s
        if not self._is_alone(now, alone_s):
            self._offer_pause_s = 0.0
        elif (
            now >= self._offer_ends_at + self._offer_pause_s
            and not self.switching_to
            and not self._is_holding
        ):  # a renewal that is under way could pass what gives L up
            self._offer_pause_s = min(max(alone_s, 2 * self._offer_pause_s), OFFER_PAUSES_MAX * alone_s)
            actions += self._offer(now)
        actions += self._change_state(now)
        return actions

    def _offer(self, now: float) -> list[Action]:
        """Leave L to others for a while. This leader may be cut from copies that reach each other.

        If all of them are gone nobody takes it: then this one goes on, in its epoch, as soon as S says so,
        and offers it again after pauses that double.
        """
        self._lease.end()
        # It is no lease to trust any more once S is read: it is given up.
        self._taken_at = None
        self._given_up = self._acquisition
        self._offer_ends_at = now + self._settings.switch_s + self._settings.offer_s
        self._held_at = self._offer_ends_at - self._settings.renew_s
        return [GiveUpLease()]

    def _is_alone(self, now: float, alone_s: float) -> bool:
        """Whether all copies have been silent for `alone_s`, and there is something that they should have."""
        is_wanted = (
            not self.is_serving
            or self._log.written > self._log.confirmed
            or (self.is_short and self._log.refused > self._refused_before)
        )
        if not is_wanted:
            return False
        others = [member for member in self.membership.state.in_sync if member != self._replica]
        return bool(others) and all(
            now - (self._began_at if (copy := self.copies.get(member)) is None else copy.level_at) > alone_s
            for member in others
        )

    def was_held(self, now: float, sent_at: float, acquisition: str) -> list[Action]:
        """L was taken or renewed by a call sent at `sent_at`; "" = somebody else has it.

        Another acquisition than before says that L was free in between: somebody may have led meanwhile, so
        S is read before the lease is trusted again.
        """
        self._is_holding = False
        if self.ended_why or self.has_handed_over or sent_at < self._offer_ends_at:
            return []
        if acquisition and acquisition == self._given_up:
            # It was not given up yet, and may be at any time.
            return self._end("nobody follows, and the lease could not be offered to others")
        if not acquisition:
            self._held_at = now - self._settings.renew_s + self._settings.read_s
            return []
        if acquisition != self._acquisition:
            self._acquisition = acquisition
            self._lease.end()
            self._taken_at = now
        if self._taken_at is None:
            self._lease.held(sent_at)
            return self._advance(now)
        self._taken_sent_at = sent_at
        if self._rebuild_from is not None:
            return self._rebuild() if sent_at >= self._lost_at else []
        return [ReadState()]

    def _trust_taken_lease(self) -> None:
        if self._taken_at is not None:
            self._taken_at = None
            self._lease.held(self._taken_sent_at)

    # S

    def _change_state(self, now: float) -> list[Action]:
        """Propose what S should be, one proposal at a time."""
        membership = self.membership
        if self._must_read or membership.is_under_way or self._rebuild_from is not None:
            return []
        wanted = self._wanted(now)
        if wanted == membership.state and membership.is_settled:
            return []
        membership.proposes(wanted)
        return [Propose(membership.version, wanted)]

    def _wanted(self, now: float) -> ShardState:
        state = self.membership.state
        settings = self._settings
        in_sync = list(state.in_sync)
        for member in state.in_sync:
            if (
                member != self._replica
                and len(in_sync) > settings.min_in_sync
                and self._is_behind(member, now)
            ):
                in_sync.remove(member)
        for copy in self.copies.values():
            if (
                copy.peer not in in_sync
                and copy.is_whole
                and copy.acknowledged >= max(self.start, self._log.confirmed)
                and not copy.is_behind(now, settings.lag_s)
            ):
                in_sync.append(copy.peer)
        confirmed = state.confirmed
        if now - self._noted_at >= settings.renew_s or in_sync != list(state.in_sync):
            self._noted_at = now
            confirmed = max(confirmed, self._log.confirmed)
        level = self._level(now, in_sync)
        return ShardState(self.epoch, self._replica, tuple(in_sync), level, confirmed)

    def waits_s(self, now: float) -> float:
        """How long it has led without serving, as members have not said what they have; 0 = it serves."""
        return 0.0 if self.is_serving else now - self._waits_since

    def followers(self, now: float) -> tuple[str, ...]:
        """Give the members that have what this log has, or had `lag_s` ago; this replica is one.

        Others stay members while there are no more than `min_in_sync`.
        """
        return tuple(
            member
            for member in self.membership.state.in_sync
            if member == self._replica or not self._is_behind(member, now)
        )

    def _level(self, now: float, in_sync: Sequence[str]) -> int:
        """The level that S should have: what every member can read, and whoever follows, never less than now.

        A leader alone, or a member that has not said what it reads, leaves it as it is.
        """
        level = self.format_level
        members = [member for member in in_sync if member != self._replica]
        if len(in_sync) < self._settings.min_in_sync or not self.copies.keys() >= set(members):
            return level
        readers = [
            copy.format_level
            for copy in self.copies.values()
            if copy.peer in members or not copy.is_behind(now, self._settings.lag_s)
        ]
        return max(level, min([self._settings.format_level, *readers]))

    def _is_behind(self, member: str, now: float) -> bool:
        copy = self.copies.get(member)
        if copy is None:
            return now - self._began_at > self._settings.lag_s
        return copy.is_behind(now, self._settings.lag_s)

    def was_proposed(
        self, now: float, state: ShardState, version: int | None, is_known: bool
    ) -> list[Action]:
        """Take the answer to a proposal: its version, None = somebody was quicker.

        Not `is_known` = no answer came: it may have been taken, or may yet be.
        """
        if self._rebuild_from is not None and is_known and version is not None:
            return self._rebuilt(now, state, version)
        if not is_known:
            self.membership.unanswered()
        elif version is not None:
            self._changed_at = now
            self.membership.taken(state, version)
            return self._advance(now)
        else:
            self.membership.lost()
        self._must_read = True
        return [ReadState()]

    def was_read(self, now: float, sent_at: float, snapshot: ShardSnapshot) -> list[Action]:
        """S and L as they were at some moment since the call was sent, at `sent_at`."""
        if self.ended_why:
            return []
        state = snapshot.state
        if snapshot.holder not in ("", self._replica):
            self._lease.end()
        if state is not None and (
            state.epoch > self.epoch or (state.epoch == self.epoch and state.leader != self._replica)
        ):
            return self._end(f"{state.leader} leads in epoch {state.epoch}")
        if self.membership.is_under_way or sent_at < self._changed_at:
            # S may be older in it than what a proposal of this leader has made of it since.
            return [ReadState()] if self._must_read and not self.membership.is_under_way else []
        self._must_read = False
        if state is None or state.epoch < self.epoch:
            return self._state_lost(now, snapshot)
        if self._rebuild_from is not None:
            # An earlier proposal was taken after all.
            return self._rebuilt(now, state, snapshot.version)
        self.membership.was_read(state, snapshot.version)
        if self._taken_at is not None:
            if sent_at < self._taken_at:
                return [ReadState()]
            self._trust_taken_lease()
        return self._advance(now)

    # The coordinator has lost S

    def _state_lost(self, now: float, snapshot: ShardSnapshot) -> list[Action]:
        """S is gone, or an old one came back: the coordinator was wiped or restored.

        The lead goes on only after L was taken anew and S is what it was; until every member has
        said hello again, nothing is served, as somebody may have led in between.
        """
        actions: list[Action] = []
        if self._rebuild_from is None:
            self._lost_at = now
            self._held_at = now
            self._is_holding = True
            actions.append(HoldLease())
            self._lease.end()
            self._taken_at = now
            if self.is_serving:
                self.is_serving = False
                self._waits_since = now
                actions.append(Cease("the coordinator has lost the shard's state"))
        self._rebuild_from = snapshot.version
        return actions

    def _rebuild(self) -> list[Action]:
        assert self._rebuild_from is not None
        if self.membership.is_under_way or self._must_read:
            return []
        state = self.membership.state
        members = tuple(sorted(self.membership.members()))
        state = replace(state, in_sync=members, confirmed=self._log.confirmed)
        self.membership.proposes(state)
        return [Propose(self._rebuild_from, state)]

    def _rebuilt(self, now: float, state: ShardState, version: int) -> list[Action]:
        self._rebuild_from = None
        self._changed_at = now
        self._trust_taken_lease()
        self._began_at = now
        self.copies.clear()
        self.membership.taken(state, version)
        return self._advance(now)

    # The end

    def switch(self, now: float, to: str) -> list[Action]:
        """Hand the lead over to a member: no more appends, and once it has everything it is asked to lead."""
        if (
            self.ended_why
            or self.switching_to
            or to not in self.membership.state.in_sync
            or to == self._replica
        ):
            return []
        self.switching_to = to
        self._switch_by = now + self._settings.switch_s
        return [StopAppends(), *self._hand_over()]

    def best_member(self) -> str:
        """The other member that has most; "" = there is none that has said hello."""
        members = [
            copy
            for copy in self.copies.values()
            if copy.peer in self.membership.state.in_sync and copy.is_whole
        ]
        return max(members, key=lambda copy: copy.acknowledged).peer if members else ""

    def _hand_over(self) -> list[Action]:
        copy = self.copies.get(self.switching_to)
        end = self._log.appended
        if copy is None or copy.acknowledged < end or self._log.confirmed < end or not self.is_serving:
            return []
        self.has_handed_over = True
        self.is_serving = False
        self._lease.end()
        self._taken_at = None
        self._switch_by += self._settings.switch_s
        actions: list[Action] = [Cease(f"the lead goes to {self.switching_to}"), GiveUpLease()]
        if copy.held is not None:
            held, copy.held = copy.held, None
            actions.append(self._grant(copy, held))
        return actions

    def _doubt(self, why: str) -> list[Action]:
        self.is_doubtful = True
        return self._end(why)

    def resign(self, why: str) -> list[Action]:
        """Give the lead up: this replica cannot go on with it."""
        return self._end(why)

    def _end(self, why: str) -> list[Action]:
        if self.ended_why:
            return []
        self.ended_why = why
        self._lease.end()
        actions: list[Action] = []
        if self.is_serving:
            self.is_serving = False
            actions.append(Cease(why))
        actions.append(GiveUpLease())
        return actions
