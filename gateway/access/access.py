"""Decides for a worker who may come in, publish and subscribe: from files and memory at once, else by asking.

A client whose question is under way waits with all that it sent: its socket is not read. The same question of
many clients is asked once.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import sys
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from gateway.access.askers import UNTRIED, AccessAnswer, AccessQuestion, Askers, always
from gateway.access.core.acl import OWNS, READ, REPLAY, filter_of
from gateway.access.core.answers import Answers
from gateway.access.files import AccessFiles
from gateway.access.password_checks import PasswordChecks
from gateway.access.plugins import PUBLISH, SUBSCRIBE, PluginClient, check_plugins
from gateway.access.rehash import REHASH_INTERVAL_S, Rehash
from gateway.access.scram_file import Exchanges
from gateway.ground.addresses import address_key
from gateway.ground.entries import TopicEntry
from gateway.ground.mounts import TenantMount, within_mount
from gateway.session.events import Subscribing
from gateway.session.permit import ALLOWED, REFUSED, UNASKED, Permit
from gateway.session.scram import METHOD
from gateway.session.session import CLOSED, Session, close_connection
from holdmq.mqtt import MQTT_5, Connect, MqttError, ReasonCode, Subscription
from holdmq.mqtt.filters import SHARE_PREFIX
from holdmq.names.tenants import split_mount
from holdmq.service import telemetry

if TYPE_CHECKING:
    import ssl

    from gateway.access.logins import Logins
    from gateway.brokers.turn import Turn
    from gateway.ground.counters import Counters
    from gateway.ground.peer import Peer
    from gateway.session.clients import Clients
    from gateway.session.session import SessionContext
    from holdmq.config.model import Config

FILE_AGE_S: Final = 86_400.0
"""How long an answer of the password file counts; its key changes with the user's line."""
LOOKS_PER_TICK: Final = 1000
"""Filters, and sessions without any, that are looked at in one tick: some milliseconds of the loop."""
LOOKS_WAITING_MAX: Final = 200
"""Questions in hand at which looking at filters in force waits: those of clients that wait come first."""
NEVER: Final = float("inf")

LeftOut = tuple[str, ...]
"""Filters of topics that a granted subscription must not deliver."""

log = telemetry.get_logger()


class _Refusal(NamedTuple):
    """Why a client does not come in."""

    code: ReasonCode
    sentence: str


WRONG: Final = _Refusal(ReasonCode.BAD_USER_NAME_OR_PASSWORD, "unknown user name or wrong password")
"""Whatever it is that does not fit, and also when it was not looked at."""


class _AnswerWaiter(NamedTuple):
    """Who waits for an answer; `is_wanted`: whether he still makes use of it, `address` is where he is."""

    on_answer: Callable[[AccessAnswer], None]
    is_wanted: Callable[[], bool]
    address: bytes


class ArrivingConnection(Protocol):
    """A connection whose CONNECT is to be looked into."""

    @property
    def session(self) -> Session:
        """The session that it carries."""

    @property
    def peer(self) -> Peer:
        """The client at the other end."""

    @property
    def ssl_object(self) -> ssl.SSLObject | None:
        """What OpenSSL knows of the connection; None without TLS."""


class Access:
    """The permissions of one worker's clients. The constructor reads files and imports plug-ins (blocking).

    Raises ConfigError.
    """

    def __init__(
        self,
        config: Config,
        worker: int,
        counters: Counters,
        context: SessionContext,
        clients: Clients,
        logins: Logins,
        turn: Turn,
        now: Callable[[], float],
        revoke: Callable[[Session, str], None],
        mount_of: Callable[[str, bool], TenantMount],
    ) -> None:
        """`revoke(session, filter)` takes a subscription away; `now` is the loop's clock.

        `mount_of(tenant, is_of_file)` is the mount of a tenant's clients.
        """
        section = config.access
        self._mount_of = mount_of
        self._clients = clients
        self._logins = logins
        self._turn = turn
        self._now = now
        self._revoke_filter = revoke
        self._section = section
        self._counters = counters
        self._allows_anonymous = section.anonymous_allowed(config.gateway)
        kinds = check_plugins(section.plugins)
        self._plugins_authenticate = any(kind.authenticates for kind in kinds)
        self._plugins_decide = any(kind.decides_on_topics for kind in kinds)
        self.files = AccessFiles(section, counters, worker)
        self._answers: Answers[AccessAnswer] = Answers(section.cache_entries_max)
        self._pending: dict[bytes, list[_AnswerWaiter]] = {}
        self._key = secrets.token_bytes(32)
        self._askers: Askers | None = None
        if kinds:
            self._askers = Askers(
                kinds,
                counters,
                threads=section.ask_threads,
                timeout_s=section.ask_timeout_s,
                asks_max=section.asks_max,
            )
        self._checks: PasswordChecks | None = None
        if section.password_file:
            self._checks = PasswordChecks(
                counters,
                threads=section.ask_threads,
                waiting_max=section.password_checks_max,
                wait_s=2 * section.ask_timeout_s,
            )
        if self.files.scram is not None:
            begin = Exchanges(self.files.verifier_of, self.files.invented).begin
            context.methods[METHOD] = partial(logins.counted, begin)
        self._rehash: Rehash | None = None
        if section.password_file and section.rehash:
            self._rehash = Rehash(Path(section.password_file), counters, REHASH_INTERVAL_S)
        context.keeps_connect = section.is_used
        context.may_mount = bool(section.tenants_file) or self._plugins_authenticate
        self._has_permits = self.files.acl is not None or self._plugins_decide
        self.version = self.files.acl_version
        self._tasks: list[asyncio.Task[None]] = []
        self._looking: Iterator[str] | None = None
        self._look_at = NEVER

    # Life

    def start(self) -> None:
        """Begin to ask, and to look at the files."""
        self._begin(self.files.run(), "access files")
        if self._rehash is not None:
            self._begin(self._rehash.run(), "access rehash")
        if self._askers is not None:
            self._askers.start()
        if self._checks is not None:
            self._checks.start()
        if self._plugins_decide:
            self._look_at = self._now() + self._section.cache_age_s

    def _begin(self, running: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(running, name=name)
        task.add_done_callback(_say_if_failed)
        self._tasks.append(task)

    async def close(self) -> None:
        """End the threads that ask."""
        if self._rehash is not None:
            self._rehash.close()
        for task in self._tasks:
            task.cancel()
        if self._askers is not None:
            await self._askers.close()
        if self._checks is not None:
            await self._checks.close()

    def tick(self, now: float) -> None:
        """Give up what takes too long; look at filters whose permission may be gone."""
        if self._askers is not None:
            self._askers.tick(now)
        if self._checks is not None:
            self._checks.tick(now)
        if not self._has_permits and self.files.tenants is None:
            return
        self._counters.access_answers = len(self._answers)
        if self.version != self.files.acl_version or now >= self._look_at:
            self.version = self.files.acl_version
            self._look_at = now + max(1.0, self._section.cache_age_s) if self._plugins_decide else NEVER
            self._looking = iter(self._clients.client_ids())
        looks = 0
        while self._looking is not None and looks < LOOKS_PER_TICK and not self._is_busy:
            client_id = next(self._looking, None)
            if client_id is None:
                self._looking = None
                return
            session = self._clients.session(client_id)
            looks += 1 if session is None else self.look(session)

    @property
    def _is_busy(self) -> bool:
        return self._askers is not None and self._askers.waiting >= LOOKS_WAITING_MAX

    # Who comes in

    def admit(self, connection: ArrivingConnection) -> None:
        """A CONNECT is right: the connection's `identified` follows, or the client is refused."""
        session = connection.session
        connect = session.credentials
        if not isinstance(connect, Connect):
            # Nothing is configured, or enhanced authentication is over.
            self._allow(session, None if not self._has_permits else _client_of(connection, None))
            return
        session.credentials = None
        client = _client_of(connection, connect)
        found = self._known(session, client)
        if isinstance(found, AccessQuestion):
            self._ask_connect(session, client, found)
        elif isinstance(found, _Refusal):
            self._refuse(session, found)
        else:
            self._identified(session, client, found, "")

    def _known(self, session: Session, client: PluginClient) -> str | _Refusal | AccessQuestion:
        """Who the client is, if it can be said without asking; "" = anonymous."""
        section = self._section
        name, passwords = client.username, self.files.passwords
        if section.certificates and client.common_name:
            if name is not None and name != client.common_name:
                return _Refusal(ReasonCode.BAD_USER_NAME_OR_PASSWORD, "the certificate is another user's")
            return client.common_name
        has_said_nothing = name is None and client.password is None
        if has_said_nothing and not client.common_name and self._allows_anonymous:
            return ""
        if not section.authenticates:
            return ""  # credentials that nobody can check; check_connect refuses who must have some
        if passwords is not None and name is not None:
            hash_text = passwords.hash_of(name)
            if hash_text is not None or not self._plugins_authenticate:
                beside = passwords.beside(hash_text)
                return AccessQuestion(client, hash_text=hash_text, decoys=beside, is_of_file=True)
        if self._plugins_authenticate:
            return AccessQuestion(client)
        if has_said_nothing and self._allows_anonymous:
            return ""  # a certificate that nobody was told to look at
        code = (
            ReasonCode.BAD_USER_NAME_OR_PASSWORD
            if session.version == MQTT_5 or not has_said_nothing
            else ReasonCode.NOT_AUTHORIZED
        )
        return _Refusal(code, "no credentials that are known here")

    def _ask_connect(self, session: Session, client: PluginClient, question: AccessQuestion) -> None:
        attempt = self._logins.attempt(session.born_host, client.username or "", client.password or b"")
        if attempt.is_held():
            # Before anything is looked up: that the right password was right a minute ago says something too.
            attempt.refused()
            self._refuse(session, WRONG)
            return
        key = self._connect_key(client, question)
        age_s = FILE_AGE_S if question.is_of_file else self._section.cache_age_s

        def answered(answer: AccessAnswer) -> None:
            is_tried = answer is not UNTRIED and not answer.failure
            # Others may have failed meanwhile, so that this one is not to be told what was found.
            is_held = attempt.is_held()
            if is_tried and not is_held:
                if answer.is_yes:
                    attempt.succeeded()
                else:
                    attempt.failed()
            if session.state == CLOSED:
                return
            if answer.failure:
                code = ReasonCode.SERVER_BUSY if answer.is_busy else ReasonCode.SERVER_UNAVAILABLE
                self._refuse(session, _Refusal(code, "access cannot be decided now"))
            elif is_held or not answer.is_yes:
                if is_held:
                    attempt.refused()
                self._refuse(session, WRONG)
            else:
                name = client.username or client.common_name if answer.is_named else ""
                if self._rehash is not None and question.hash_text is not None and client.password:
                    self._rehash.offer(name, question.hash_text, client.password)
                self._identified(session, client, name, answer.tenant)

        def is_wanted() -> bool:
            return session.state != CLOSED and not attempt.is_held()

        self._ask(key, question, age_s, _AnswerWaiter(answered, is_wanted, address_key(session.born_host)))

    def _identified(self, session: Session, client: PluginClient, principal: str, tenant: str) -> None:
        # Many connections of one user keep one name.
        session.principal = sys.intern(principal)
        self._allow(session, client, tenant)

    def _allow(self, session: Session, client: PluginClient | None, tenant: str = "") -> None:
        """It is known who the client is: look at what it wants to be called, and to leave behind.

        `tenant` is what a plug-in has said of it, which counts before the file.
        """
        if not self._may_have_id(session):
            why = "no permission for this client identifier"
            self._refuse(session, _Refusal(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, why))
            return
        if self._has_permits and client is not None:
            self._permit(session, client)
        if tenant:
            session.enter(self._mount_of(tenant, False))
        elif of_file := self._tenant_by_file(session):
            session.enter(self._mount_of(of_file, True))
        self._check_will(session)

    def _tenant_by_file(self, session: Session) -> str:
        tenants = self.files.tenants
        return "" if tenants is None else tenants.of(session.principal)

    def _is_anothers(self, session: Session) -> bool:
        """Whether the file says now that a client is another tenant's, or nobody's, than when it came in."""
        mount = session.mount
        if mount is None:
            return bool(self._tenant_by_file(session))
        return mount.is_of_file and mount.tenant != self._tenant_by_file(session)

    def _may_have_id(self, session: Session) -> bool:
        acl = self.files.acl
        # An id that was made here is nobody's, and nobody can have chosen it.
        if acl is None or session.is_assigned:
            return True
        return acl.id_right(session.principal, session.own_id) is not None

    def owns_id(self, session: Session) -> bool:
        """Whether a line of the ACL gives the client id to this user, so that others' sessions must go."""
        acl = self.files.acl
        if acl is None or session.is_assigned:
            return False
        return acl.id_right(session.principal, session.own_id) == OWNS

    def _permit(self, session: Session, client: PluginClient) -> None:
        identity = b""
        kept: PluginClient | None = None
        if self._plugins_decide:
            kept = client._replace(username=client.username or session.principal or None)
            identity = self._digest(b"client", *_facts(kept))
        permit = Permit(self, session.principal, session.client_id, kept, identity)
        permit.forget(self._fresh_until())
        session.permit = permit

    def _check_will(self, session: Session) -> None:
        """A will is a publish [MQTT-3.1.2-8] that nobody would be told about later: it is decided now."""
        permit, will = session.permit, session.will
        if permit is None or will is None:
            _identified(session)
            return
        topic = split_mount(will.topic).inner

        def answered(answer: AccessAnswer) -> None:
            if session.state == CLOSED:
                return
            if answer.is_yes:
                _identified(session)
            else:
                why = f"no permission for the will's topic {topic[:64]!r}"
                self._refuse(session, _Refusal(ReasonCode.NOT_AUTHORIZED, why))

        verdict = self.publish_verdict(permit, topic)
        if verdict == UNASKED:
            self._ask_topic(permit, topic, PUBLISH, answered)
        else:
            answered(AccessAnswer(verdict == ALLOWED))

    def _refuse(self, session: Session, refusal: _Refusal) -> None:
        connection = session.connection
        if connection is not None:
            connection.admitted(session.refuse(MqttError(refusal.code, refusal.sentence)))

    # Who may publish

    def publish_verdict(self, permit: Permit, topic: str) -> int:
        """ALLOWED, REFUSED or UNASKED, of a topic as the client says it.

        For `$delayed/<seconds>/<topic>` it is called with the topic.
        """
        acl = self.files.acl
        if acl is not None and not acl.may_publish(permit.user, permit.client_id, topic):
            return REFUSED
        if not self._plugins_decide:
            return ALLOWED
        answer = self._answers.get(self._topic_key(permit, topic, PUBLISH), self._now())
        if answer is None:
            return UNASKED
        self._counters.access_cached_total += 1
        return self._verdict(permit, answer)

    def _verdict(self, permit: Permit, answer: AccessAnswer) -> int:
        """A plug-in's answer as it is kept beside the client, a refusal for no longer than in memory."""
        if answer.is_yes:
            return ALLOWED
        permit.until = min(permit.until, self._now() + self._section.cache_refused_age_s)
        return REFUSED

    def ask_publish(self, session: Session, entry: TopicEntry, on_known: Callable[[], None]) -> None:
        """Have a topic decided that was UNASKED; then its verdict is known, a failure's once."""
        permit = session.permit
        assert permit is not None

        def answered(answer: AccessAnswer) -> None:
            if permit.publishes is None:
                permit.publishes = {}
            permit.publishes[entry] = self._verdict(permit, answer)
            # However short its time is, who waited gets it: else the same would be asked for ever.
            until, permit.until = permit.until, NEVER
            on_known()
            permit.until = min(permit.until, until)
            if answer.failure and permit.publishes is not None:
                permit.publishes.pop(entry, None)

        self._ask_topic(permit, entry.said, PUBLISH, answered)

    def refresh(self, session: Session, permit: Permit) -> None:
        """Forget verdicts that have had their time; called before a run of publishes."""
        if permit.until <= self._now() or permit.version != self.version:
            permit.forget(self._fresh_until())
            if session.inbound is not None:
                session.inbound.forget_plans()

    def _fresh_until(self) -> float:
        return self._now() + self._section.cache_age_s if self._plugins_decide else NEVER

    # Who may subscribe

    def decide_filters(self, session: Session, event: Subscribing, on_known: Callable[[], None]) -> bool:
        """Refuse the filters of a SUBSCRIBE that the client may not have.

        False: it must be asked; `on_known` is called when it is known, and this is to be called again.
        """
        asked: list[str] = []
        granted: list[tuple[int, Subscription | None]] = []
        for code, wanted in event.granted:
            if wanted is not None and code < ReasonCode.UNSPECIFIED_ERROR:
                right = READ if event.replay is None else REPLAY
                verdict = self.filter_verdict(session, wanted.topic_filter, right)
                if verdict == UNASKED:
                    asked.append(wanted.topic_filter)
                elif verdict is None:
                    self._counters.refused["subscribe_not_authorized"] += 1
                    code, wanted = self._refusal(session, wanted.topic_filter, right), None
                elif isinstance(verdict, tuple) and verdict:
                    event.left_out = {**(event.left_out or {}), wanted.topic_filter: verdict}
            granted.append((code, wanted))
        if asked:
            self._ask_filters(session, asked, on_known)
            return False
        event.granted = granted
        if session.permit is not None:
            session.permit.filters = None
        return True

    def _refusal(self, session: Session, topic_filter: str, right: int) -> int:
        """SUBACK's code. What a rule denies is refused without a reason: that there is one says something."""
        acl, permit = self.files.acl, session.permit
        narrow = within_mount(session.mount, filter_of(topic_filter))
        if acl is None or permit is None or narrow is None:
            return REFUSED
        is_denied = acl.is_denied(permit.user, permit.client_id, narrow, right)
        return ReasonCode.UNSPECIFIED_ERROR if is_denied else REFUSED

    def filter_verdict(self, session: Session, topic_filter: str, right: int = READ) -> LeftOut | int | None:
        """What a subscription must leave out, None = refused, or UNASKED.

        To read from a time in the past (REPLAY) needs a rule of its own where there is an ACL. What is of
        another tenant, or of one for who is nobody's, no rule and no plug-in gives; they are asked for what
        the client says, without its tenant's mount.
        """
        permit = session.permit
        narrow = within_mount(session.mount, filter_of(topic_filter))
        if narrow is None:
            return None
        if permit is not None and permit.filters is not None and topic_filter in permit.filters:
            if not permit.filters[topic_filter]:
                return None
        elif permit is not None and self._plugins_decide:
            answer = self._answers.get(self._topic_key(permit, narrow, SUBSCRIBE), self._now())
            if answer is None:
                return UNASKED
            self._counters.access_cached_total += 1
            if not answer.is_yes:
                return None
        acl = self.files.acl
        if acl is not None and permit is not None:
            left_out = acl.may_subscribe(permit.user, permit.client_id, narrow, right)
            # Who shares a message with whom is not known when it is taken: a share is allowed whole, or not.
            if left_out and topic_filter.startswith(SHARE_PREFIX):
                return None
            if left_out and session.mount is not None:
                return tuple(session.mount.prefix + name for name in left_out)
            return left_out
        is_sys = narrow == "$SYS" or narrow.startswith("$SYS/")
        return None if is_sys and not self._section.sys_topics else ()

    def _ask_filters(self, session: Session, asked: list[str], on_known: Callable[[], None]) -> None:
        permit = session.permit
        assert permit is not None
        left = len(asked)
        # Beside the cache: what was answered for this SUBSCRIBE is there when the last one is, failures too,
        # and still there if what was remembered at first has aged meanwhile and is asked for as well.
        known = permit.filters = dict(permit.filters or {})

        def answered(topic_filter: str, answer: AccessAnswer) -> None:
            nonlocal left
            left -= 1
            known[topic_filter] = answer.is_yes
            if not left:
                on_known()
                if permit.filters is known:
                    permit.filters = None

        for topic_filter in asked:
            narrow = within_mount(session.mount, filter_of(topic_filter))
            assert narrow is not None
            self._ask_topic(permit, narrow, SUBSCRIBE, partial(answered, topic_filter))

    def knows_filters(self, session: Session, filters: list[str], on_known: Callable[[], None]) -> bool:
        """Whether it is known which of a stored session's filters its client may have (still).

        False: `on_known` is called when it is.
        """
        if session.permit is None or not self._plugins_decide or session.state == CLOSED:
            return True
        asked = [name for name in filters if self.filter_verdict(session, name) == UNASKED]
        if asked:
            self._ask_filters(session, asked, on_known)
        return not asked

    # What is in force

    def is_outdated(self, session: Session) -> bool:
        """Whether files were read again since a session that comes in now was allowed to."""
        is_older = session.permit is not None and session.permit.version != self.version
        return is_older or self._is_anothers(session)

    def look(self, session: Session) -> int:
        """Take filters away that the client may not have any more; how many it had, at least 1.

        Who may not have its client id any more is disconnected: it would keep it from who may. So is who is
        another tenant's now.
        """
        outbound = session.outbound
        if session.state != CLOSED and self._is_anothers(session):
            self._counters.tenants_changed_total += 1
            log.info("a client is not its tenant's any more; its connection ends", client=session.client_id)
            close_connection(
                session, ReasonCode.NOT_AUTHORIZED, "tenant_changed", "the user is not this tenant's any more"
            )
            return 1
        if session.permit is not None and session.state != CLOSED and not self._may_have_id(session):
            self._counters.client_ids_revoked_total += 1
            log.info("a client id is not allowed any more; its connection ends", client=session.client_id)
            sentence = "no permission for this client identifier any more"
            close_connection(session, ReasonCode.NOT_AUTHORIZED, "client_id_revoked", sentence)
            return 1
        if outbound is None or session.permit is None or session.state == CLOSED:
            return 1
        names = [*outbound.subscriptions, *(outbound.shared or ())]
        for name in names:
            verdict = self.filter_verdict(session, name)
            if verdict == UNASKED:
                looked = partial(self._looked, session, name)
                narrow = within_mount(session.mount, filter_of(name))
                assert narrow is not None
                self._ask_topic(session.permit, narrow, SUBSCRIBE, looked)
            elif verdict is None:
                self._revoke(session, name)
            elif isinstance(verdict, tuple) and name in outbound.subscriptions:
                outbound.subscriptions[name].left_out = verdict or None
        return max(1, len(names))

    def _looked(self, session: Session, name: str, answer: AccessAnswer) -> None:
        # While nobody can say, what was allowed stays: a lost server must not cost every subscription.
        if not answer.failure and not answer.is_yes and session.state != CLOSED:
            self._revoke(session, name)

    def _revoke(self, session: Session, name: str) -> None:
        self._counters.filters_revoked_total += 1
        log.info("a subscription is not allowed any more and ends", client=session.client_id, filter=name)
        self._revoke_filter(session, name)

    # Asking

    def _ask_topic(
        self, permit: Permit, topic: str, action: str, on_answer: Callable[[AccessAnswer], None]
    ) -> None:
        client = permit.client
        assert isinstance(client, PluginClient)
        question = AccessQuestion(client, topic=topic, action=action)
        waiter = _AnswerWaiter(on_answer, always, b"")
        self._ask(self._topic_key(permit, topic, action), question, self._section.cache_age_s, waiter)

    def _ask(self, key: bytes, question: AccessQuestion, age_s: float, waiter: _AnswerWaiter) -> None:
        """Answer from memory, at once; else ask, or wait for who asked the same."""
        known = self._answers.get(key, self._now())
        if known is not None:
            self._counters.access_cached_total += 1
            waiter.on_answer(known)
            return
        waiting = self._pending.get(key)
        if waiting is not None:
            waiting.append(waiter)
            return
        asked = self._pending[key] = [waiter]

        def answered(answer: AccessAnswer) -> None:
            if not answer.failure and answer is not UNTRIED:
                lasts_s = age_s if answer.is_yes else min(age_s, self._section.cache_refused_age_s)
                self._answers.put(key, answer, self._now() + lasts_s)
            for waiter in self._pending.pop(key):
                if answer is UNTRIED and waiter.is_wanted():
                    self._ask(key, question, age_s, waiter)  # it came when the others were given up
                else:
                    waiter.on_answer(answer)
            self._turn.settle()

        question.is_wanted = lambda: any(waiter.is_wanted() for waiter in asked)
        if question.is_of_file:
            assert self._checks is not None
            self._checks.ask(waiter.address, question, answered)
        else:
            assert self._askers is not None
            self._askers.ask(question, answered)

    def _connect_key(self, client: PluginClient, question: AccessQuestion) -> bytes:
        if question.is_of_file:
            # The hash in the key: a user's new password makes the old answer nobody's.
            facts = (client.username, client.password, question.hash_text)
            return self._digest(b"file", *facts)
        return self._digest(b"connect", *_facts(client))

    def _topic_key(self, permit: Permit, topic: str, action: str) -> bytes:
        return self._digest(permit.identity, action, topic)

    def _digest(self, *parts: str | bytes | None) -> bytes:
        """A key that says nothing of passwords to who reads the memory of the cache alone."""
        made = hashlib.blake2b(key=self._key, digest_size=16)
        for part in parts:
            raw = b"" if part is None else part.encode() if isinstance(part, str) else part
            made.update(b"%d:" % (-1 if part is None else len(raw)))
            made.update(raw)
        return made.digest()


def _identified(session: Session) -> None:
    if session.connection is not None:
        session.connection.identified()


def _say_if_failed(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.critical("a task of access has ended", task=task.get_name(), exc_info=task.exception())


def _client_of(connection: ArrivingConnection, connect: Connect | None) -> PluginClient:
    session = connection.session
    peer = connection.peer
    return PluginClient(
        session.client_id,
        session.principal or None if connect is None else connect.username,
        None if connect is None else connect.password,
        peer.address,
        peer.port,
        connection.ssl_object,
        "" if peer.certificate is None else peer.certificate.common_name,
        session.is_clean,
        int(session.keep_alive_s),
    )


def _facts(client: PluginClient) -> tuple[str | bytes | None, ...]:
    """What a plug-in's answer may depend on; the port is a chance."""
    tls = client.ssl_object
    certificate = None if tls is None else tls.getpeercert(binary_form=True)
    return client.username, client.password, client.client_id, client.address, certificate
