"""One client's session, sans-IO: MQTT 3.1, 3.1.1 and 5.0.

::

    CONNECTING ──CONNECT──► OPENING ──admit()──► CONNECTED ──DISCONNECT, error, deadline, close()──► CLOSED
        └──────refused──────────┴──refuse(), connection lost─────────────────────────────────────────▲

    CONNECTING ──CONNECT with a method──► AUTHENTICATING ──AUTH …──► OPENING

OPENING: the owner of the client id is asked; what the client sends meanwhile waits. A session that outlives
its connection has a `cursor`; its row is its owner's affair (gateway.persistent.sessions). The connection
feeds `receive_data`, handles the events in order, and writes `data_to_send()`; bytes also appear when
receipts settle or messages are pushed, and the session then puts itself on `context.dirty`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from gateway.ground.counters import Counters
from gateway.ground.entries import TopicEntry
from gateway.ground.limits import TOPIC_ALIAS_MAX, SessionLimits
from gateway.ground.mounts import TenantMount, mounted_filter
from gateway.ground.receipts import CLOSE, PublishReceipt, ReceiptOwner
from gateway.ground.wheel import NOWHERE
from gateway.session.aliases import Aliases
from gateway.session.authenticating import (
    BeginAt,
    Enhanced,
    begin,
    take_again,
    take_before_connack,
    with_authentication,
)
from gateway.session.connecting import check_connect, connack_properties, expiry_of, keep_alive_of
from gateway.session.connection import SessionConnection
from gateway.session.cursor import SessionCursor
from gateway.session.events import CONNECTED, WINDOW_OPENED, Closed, Event, Unsubscribing
from gateway.session.inbound import Inbound
from gateway.session.outbound import Outbound, Planned
from gateway.session.owner_rows import OwnerRows
from gateway.session.permit import Permit
from gateway.session.subscribing import check_answer_fits, granting
from holdmq.mqtt import (
    MQTT_5,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    AckRun,
    Auth,
    CheckedTopics,
    ConnAck,
    Connect,
    Decoder,
    Disconnect,
    MqttError,
    Packet,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    PubComp,
    PublishRun,
    PubRec,
    PubRel,
    ReasonCode,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
    Will,
    encode,
    encode_acks,
    encode_pubcomps,
    encode_pubrecs,
    encode_short_ack,
)
from holdmq.mqtt.properties import NO_PROPERTIES

_ELSEWHERE: Final = frozenset((int(ReasonCode.USE_ANOTHER_SERVER), int(ReasonCode.SERVER_MOVED)))
"""Reasons with which a client is told where to go."""
CONNECTING: Final = 0
CONNECTED_STATE: Final = 1
CLOSED: Final = 2
OPENING: Final = 3
AUTHENTICATING: Final = 4

REASON_CHARACTERS_MAX: Final = 256
"""Of a reason string: what a person reads in a log."""

_CONNACK_ANSWERS_V3: Final = frozenset((0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x97, 0x9C, 0x9D, 0x9F))
"""Refusals that a 3.x client is told; for malformed packets 3.1.1 asks to close without an answer."""


class SessionContext:
    """What all sessions of a worker share.

    `traced` is told what clients send, while somebody wants to see it. `dirty` lists sessions that have bytes
    to send, `unserved` those that must be closed because their broker did not take what they sent,
    `planning` those whose row must be written before they send more, `stale` those whose row lags behind.
    `methods` are those of enhanced authentication; with `keeps_connect` a session keeps its CONNECT until its
    client was authenticated.
    """

    __slots__ = (
        "counters",
        "dirty",
        "keeps_connect",
        "limits",
        "may_mount",
        "methods",
        "new_client_id",
        "planning",
        "stale",
        "topics",
        "traced",
        "unserved",
    )

    def __init__(
        self,
        topics: CheckedTopics[TopicEntry],
        limits: SessionLimits,
        counters: Counters,
        new_client_id: Callable[[], str],
    ) -> None:
        self.topics = topics
        self.limits = limits
        self.counters = counters
        self.new_client_id = new_client_id
        self.methods: dict[str, BeginAt] = {}
        self.keeps_connect = False
        self.may_mount = False
        """Whether clients may turn out to be a tenant's: until then their ids are not what they go by."""
        self.dirty: list[Session] = []
        self.unserved: list[Session] = []
        self.planning: list[Session] = []
        self.stale: list[Session] = []
        self.traced: Callable[[Session, list[object]], None] | None = None


class Session(ReceiptOwner):
    """The state machine of one connection. `born_host` is the peer's address as records carry it."""

    __slots__ = (
        "_connack",
        "_decoder",
        "_early",
        "_is_inside_packet",
        "_more_out",
        "_out",
        "_window",
        "began_at",
        "born_host",
        "client_id",
        "connection",
        "context",
        "credentials",
        "cursor",
        "epoch",
        "expiry_s",
        "heard_at",
        "inbound",
        "is_assigned",
        "is_clean",
        "is_held",
        "is_terse",
        "keep_alive_s",
        "mount",
        "outbound",
        "owner",
        "packet_max",
        "permit",
        "principal",
        "refuse_with",
        "state",
        "version",
        "wheel_slot",
        "will",
    )  # fmt: skip

    def __init__(self, context: SessionContext, now: float, born_host: bytes) -> None:
        # What every publish touches comes first, so that it shares cache lines.
        self.context = context
        self.state = CONNECTING
        self.version = 0
        self.heard_at = now
        self.connection: SessionConnection | None = None
        self.inbound: Inbound | None = None
        self.permit: Permit | None = None
        """What the client may do; None = everything, nobody is asked."""
        self._is_inside_packet = False
        self._out = b""
        self._more_out: list[bytes] | None = None
        self.outbound: Outbound | None = None
        self.cursor: SessionCursor | None = None
        self.client_id = ""
        self.born_host = born_host
        self.began_at = 0.0
        self.keep_alive_s = 0.0
        self.is_held = False
        self.is_terse = False
        self.refuse_with: MqttError | None = None
        self.will: Will | None = None
        self.principal = ""
        """Whose connection this is: a user who was authenticated, "" = anonymous."""
        self.mount: TenantMount | None = None
        """The mount of the client's tenant, below which everything of it is named; None = it is nobody's."""
        self.credentials: Connect | Enhanced | None = None
        """CONNECT until it was looked at (`SessionContext.keeps_connect`), or the connection's `Enhanced`."""
        self.packet_max = 0
        self.wheel_slot = NOWHERE
        self.is_clean = True
        self.is_assigned = False
        self.expiry_s = 0
        self.epoch = 0
        self.owner: OwnerRows | None = None
        self._connack: Properties | None = None
        self._early: list[object] | None = None
        limits = context.limits
        self._decoder = Decoder(
            context.topics, limits.packet_max_bytes, connect_max_size=limits.connect_max_bytes
        )
        self._window = 0

    # In

    def receive_data(self, data: bytes, now: float) -> list[Event]:
        """Take bytes from the client; return what happened, in order. Nothing more after Closed."""
        if self.state > CONNECTED_STATE:
            if self.state == CLOSED:
                return []
            if self.state == OPENING:
                # It is not read now; what was on its way waits.
                assert self._early is not None
                self._early.append(data)
                return []
        broken: MqttError | None = None
        try:
            items: list[object] = self._decoder.feed(data)  # type: ignore[assignment]
            self._is_inside_packet = self._decoder.buffered > 0
        except MqttError as error:
            items, broken = error.decoded, error
        if self.context.traced is not None:
            self.context.traced(self, items)
        if self.state == AUTHENTICATING:
            return self._take_auths(items, broken)
        return self._take(items, broken, now)

    def _take(self, items: list[object], broken: MqttError | None, now: float) -> list[Event]:
        """Do what decoded items say, in order, then fail for what could not be decoded behind them."""
        events: list[Event] = []
        try:
            for at, item in enumerate(items):
                if type(item) is PublishRun:
                    self._take_publishes(item, events)
                elif type(item) is AckRun:
                    self._take_acks(item.packet_type, item.packet_ids, events)
                else:
                    self._packet(item, events)  # type: ignore[arg-type]
                if self.state == CLOSED:
                    return events
                if self.state == OPENING:
                    self._early = [items[at + 1 :], broken]
                    return events
                if self.state == AUTHENTICATING:
                    return events + self._take_auths(items[at + 1 :], broken)
            if broken is not None:
                raise broken
            if self.state == CONNECTED_STATE:
                self.heard_at = now  # until CONNECT the deadline counts from the beginning
        except MqttError as error:
            self._fail(error, events)
        return events

    def takes_publish(self, data: bytes) -> bool:
        """Whether `data`, one whole PUBLISH, comes where `receive_data` would only hand it on: connected,
        outside a packet, not traced, not too large."""
        return (
            self.state == CONNECTED_STATE
            and self.context.traced is None
            and not self._is_inside_packet
            and len(data) <= self.context.limits.packet_max_bytes
        )

    def _take_auths(self, items: list[object], broken: MqttError | None) -> list[Event]:
        """Do what comes between CONNECT and CONNACK; behind the last AUTH it waits, as behind any CONNECT."""
        events: list[Event] = []
        try:
            for at, item in enumerate(items):
                if isinstance(item, Disconnect):
                    return self.connection_lost()
                answer = take_before_connack(self.credentials, item)
                if answer.user is not None:
                    self.principal = answer.user
                    self._connack = with_authentication(self._connack, answer.told)  # [MQTT-4.12.0-5]
                    self._decoder.max_packet_size = self.context.limits.packet_max_bytes
                    self.state = OPENING
                    self._early = [items[at + 1 :], broken]
                    return [CONNECTED]
                self.send(encode(Auth(ReasonCode.CONTINUE_AUTHENTICATION, answer.told), self.version))
            if broken is not None:
                raise broken
        except MqttError as error:
            self._fail(error, events)
        return events

    # Opening

    def enter(self, mount: TenantMount) -> None:
        """The client is a tenant's: its id, its will, and whatever it names from now on are below `mount`."""
        assert self.mount is None
        self.mount = mount
        self.client_id = mount.prefix + self.client_id
        if self.will is not None:
            self.will = replace(self.will, topic=mount.prefix + self.will.topic)
        topics = mount.topics
        # What came with CONNECT was looked up before it was known whose it is.
        self._decoder.use_topics(topics, lambda entry: topics.admit(entry.raw))
        early: list[object] = self._early[0] if self._early else []  # type: ignore[assignment]
        for item in early:
            if type(item) is PublishRun:
                item.messages = [
                    (topics.admit(entry.raw), flags, packet_id, start, end, properties)
                    for entry, flags, packet_id, start, end, properties in item.messages
                ]

    @property
    def own_id(self) -> str:
        """The client id as the client gave it."""
        return self.client_id if self.mount is None else self.client_id[len(self.mount.prefix) :]

    def admit(self, is_present: bool, now: float) -> list[Event]:
        """The session is open: CONNACK [MQTT-3.2.2-2] [MQTT-3.2.2-3], then what came behind CONNECT."""
        assert self.state == OPENING
        self.state = CONNECTED_STATE
        self.heard_at = self.began_at = now
        self.context.counters.connects_total += 1
        answer = encode(ConnAck(is_present, 0, self._connack or NO_PROPERTIES), self.version)
        self._connack = None
        early, self._early = self._early or [[], None], None
        if self.packet_max and len(answer) > self.packet_max:  # [MQTT-3.1.2-24]
            return self._too_small(len(answer))
        self.send(answer)
        events = self._take(early[0], early[1], now)  # type: ignore[arg-type]
        for data in early[2:]:
            events += self.receive_data(data, now)  # type: ignore[arg-type]
        return events

    def _too_small(self, size_bytes: int) -> list[Event]:
        self.state = OPENING
        events: list[Event] = []
        sentence = f"CONNACK has {size_bytes} bytes, the client takes {self.packet_max}"
        self._fail(MqttError(ReasonCode.PACKET_TOO_LARGE, sentence), events)
        return events

    def refuse(self, error: MqttError) -> list[Event]:
        """The session cannot be opened: CONNACK with the error's code, then Closed."""
        events: list[Event] = []
        if self.state == OPENING:
            self._early = None
            self._fail(error, events)
        return events

    def data_to_send(self) -> bytes:
        """Take the bytes to write."""
        out, self._out = self._out, b""
        more, self._more_out = self._more_out, None
        return out if more is None else b"".join((out, *more))

    # Time

    def next_deadline(self) -> float | None:
        """When `handle_deadline` is due; None = never."""
        if self.state == CONNECTING or self.state == AUTHENTICATING:
            return self.heard_at + self.context.limits.unauthenticated_s
        if self.state == CONNECTED_STATE and self.keep_alive_s:
            return self.heard_at + 1.5 * self.keep_alive_s  # [MQTT-3.1.2-22] (3.1.1: -24)
        return None

    def handle_deadline(self, now: float) -> list[Event]:
        """Close if the deadline has come: half a CONNECT, or silence for 1.5 times the keep alive."""
        deadline = self.next_deadline()
        if deadline is None or now < deadline:
            return []
        if self.is_held:
            self.heard_at = now  # what the client sent waits in its socket, unread on our account
            return []
        if self.state != CONNECTED_STATE:
            return self._end(
                "unauthenticated", f"no complete CONNECT within {self.context.limits.unauthenticated_s:g} s"
            )
        return self.close(
            ReasonCode.KEEP_ALIVE_TIMEOUT, "keep_alive", f"nothing heard for {now - self.heard_at:.1f} s"
        )

    # Closing

    def close(self, reason_code: int, reason: str, sentence: str, *, with_will: bool = True) -> list[Event]:
        """End the connection from this side: DISCONNECT to an MQTT 5 client, then Closed."""
        if self.state == CLOSED:
            return []
        if self.state == CONNECTED_STATE and self.version == MQTT_5:
            self._say(Disconnect(reason_code), sentence)
        return self._end(reason, sentence, with_will=with_will)

    def connection_lost(self) -> list[Event]:
        """The socket is gone without a DISCONNECT: the will is due [MQTT-3.1.2-8]."""
        return [] if self.state == CLOSED else self._end("", "connection lost")

    def _end(self, reason: str, sentence: str, *, with_will: bool = True) -> list[Event]:
        had_will = self.will is not None
        will = self.will if with_will and self.state == CONNECTED_STATE else None
        self.will = None  # [MQTT-3.1.2-10]
        self.state = CLOSED
        if self.inbound is not None:
            self.inbound.drop_receipts()
        if reason:
            self.context.counters.refused[reason] += 1
        return [Closed(reason, sentence, will, had_will)]

    def _fail(self, error: MqttError, events: list[Event]) -> None:
        code = error.reason_code
        reason = code.name.lower()
        if self.state == CONNECTED_STATE:
            events += self.close(code, reason, str(error))
            return
        version = self.version = self._decoder.version
        if version == MQTT_5:  # [MQTT-3.1.4-2]
            self._say(ConnAck(False, code), str(error))
        elif version and code in _CONNACK_ANSWERS_V3:
            self.send(encode(ConnAck(False, code), version))
        events += self._end(reason, str(error))

    def _say(self, packet: ConnAck | Disconnect, sentence: str) -> None:
        """Send an MQTT 5 client its last packet, with the reason as far as there is room.

        [MQTT-3.1.2-29] allows a reason string here in any case; one that is too long for the client is left
        out [MQTT-3.2.2-19] [MQTT-3.14.2-3], and so is all for which it has no room [MQTT-3.1.2-24].
        """
        elsewhere = self.context.limits.server_reference if packet.reason_code in _ELSEWHERE else None
        packet.properties = Properties(
            reason_string=sentence[:REASON_CHARACTERS_MAX], server_reference=elsewhere
        )
        data = encode(packet, MQTT_5)
        room = self.packet_max or len(data)
        if len(data) > room:
            packet.properties = NO_PROPERTIES
            data = encode(packet, MQTT_5)
        if len(data) <= room:
            self.send(data)

    # Packets

    def _packet(self, packet: Packet, events: list[Event]) -> None:
        if isinstance(packet, PingReq):
            self.send(encode(PingResp(), self.version))  # [MQTT-3.12.4-1]
        elif isinstance(packet, Subscribe):
            check_answer_fits(len(packet.subscriptions), self.packet_max)
            context = self.context
            prefix = "" if self.mount is None else self.mount.prefix
            events.append(granting(packet, self.outgoing(), context.limits, context.counters, prefix))
        elif isinstance(packet, Unsubscribe):
            check_answer_fits(len(packet.topic_filters), self.packet_max)
            filters = packet.topic_filters
            if self.mount is not None:
                filters = [mounted_filter(self.mount.prefix, name) for name in filters]
            events.append(Unsubscribing(packet.packet_id, filters))
        elif isinstance(packet, Connect):
            self._connect(packet, events)
        elif isinstance(packet, Disconnect):
            self._disconnect(packet, events)
        elif isinstance(packet, PubRec) and packet.reason_code:
            self._take_pubrec(packet.packet_id, packet.reason_code)
            self._after_acks(events)
        elif isinstance(packet, PubAck | PubRec | PubRel | PubComp):
            self._take_acks(packet.packet_type, [packet.packet_id], events)
        else:
            answer = take_again(self.credentials, self.principal, packet)
            goes_on = answer.user is None
            code = ReasonCode.CONTINUE_AUTHENTICATION if goes_on else ReasonCode.SUCCESS
            self.send(encode(Auth(code, answer.told), self.version))

    def _connect(self, connect: Connect, events: list[Event]) -> None:
        limits = self.context.limits
        check_connect(connect, limits)
        if self.refuse_with is not None:
            raise self.refuse_with
        assigned = None if connect.client_id else self.context.new_client_id()
        self.client_id = connect.client_id or assigned or ""
        self.is_assigned = assigned is not None
        self.is_clean = connect.clean_start
        self.version = connect.version
        self.keep_alive_s = float(keep_alive_of(connect, limits))
        properties = connect.properties
        self._window = min(properties.receive_maximum or limits.inflight_max, limits.inflight_max)
        self.expiry_s = expiry_of(connect, limits)
        self.packet_max = properties.maximum_packet_size or 0
        self.is_terse = properties.request_problem_information == 0
        if properties.topic_alias_maximum:
            self.outgoing().aliases = Aliases(properties.topic_alias_maximum)
        self.will = connect.will
        if connect.version == MQTT_5:
            self._connack = connack_properties(connect, limits, self.client_id, assigned)
            self._decoder.allow_topic_aliases(TOPIC_ALIAS_MAX)
        if properties.authentication_method is not None:
            self.state = AUTHENTICATING
            self._decoder.max_packet_size = limits.connect_max_bytes
            self.credentials = enhanced = begin(connect, self.context.methods, self.born_host)
            told = enhanced.first(properties.authentication_data).told
            self.send(encode(Auth(ReasonCode.CONTINUE_AUTHENTICATION, told), self.version))
            return
        if self.context.keeps_connect:
            self.credentials = connect
        self.state = OPENING
        events.append(CONNECTED)

    def _disconnect(self, packet: Disconnect, events: list[Event]) -> None:
        asked_s = packet.properties.session_expiry_interval
        if asked_s is not None:
            if asked_s and not self.expiry_s:  # [MQTT-3.14.2-2], 3.14.2.2.2
                raise MqttError(ReasonCode.PROTOCOL_ERROR, "DISCONNECT raises the session expiry from 0")
            self.expiry_s = min(asked_s, self.context.limits.session_expiry_max_s)
        with_will = packet.reason_code != 0
        events += self._end("", "client disconnected", with_will=with_will)  # [MQTT-3.14.4-3]

    def outgoing(self) -> Outbound:
        """The sending half, made when it is first needed."""
        if self.outbound is None:
            self.outbound = Outbound(self._window)
        return self.outbound

    def subscribed(self, packet_id: int, codes: list[int], reason: str = "") -> None:
        """The filters are in effect: SUBACK [MQTT-3.8.4-1] [MQTT-3.8.4-6], with `reason` for people."""
        if self.state != CONNECTED_STATE:
            return
        answer = encode(SubAck(packet_id, codes), self.version)
        if reason and self.version == MQTT_5 and not self.is_terse:  # [MQTT-3.1.2-29]
            explained = Properties(reason_string=reason[:REASON_CHARACTERS_MAX])
            told = encode(SubAck(packet_id, codes, explained), MQTT_5)
            if not self.packet_max or len(told) <= self.packet_max:  # [MQTT-3.9.2-1]
                answer = told
        self.send(answer)

    def unsubscribed(self, packet_id: int, codes: list[int]) -> None:
        """The filters are gone: UNSUBACK [MQTT-3.10.4-4] [MQTT-3.11.3-1]."""
        if self.state == CONNECTED_STATE:
            self.send(encode(UnsubAck(packet_id, codes), self.version))

    # Publishes in

    def _take_publishes(self, run: PublishRun[TopicEntry], events: list[Event]) -> None:
        """Check a run of PUBLISH, count what is owed for it, and hand on what is new of it."""
        inbound = self.inbound
        if inbound is None:
            inbound = self.inbound = Inbound()
        owed = 0
        for message in run.messages:
            if message[1] != 2:
                owed, repeats = inbound.take_mixed(run, self.context.counters)
                if repeats:
                    self.send(encode_pubrecs(repeats))
                break
            owed += 1
        else:
            self.context.counters.messages_in_qos1_total += owed
        if owed:
            inbound.count += owed
            inbound.unsettled += owed
            if inbound.count > self.context.limits.receive_max and self.version == MQTT_5:
                raise MqttError(  # 3.3.4, [MQTT-4.9.0-1]
                    ReasonCode.RECEIVE_MAXIMUM_EXCEEDED,
                    f"{inbound.count} publishes are unacknowledged, past the receive maximum",
                )
        if run.messages:
            inbound.messages += len(run.messages)
            events.append(run)

    @property
    def is_saturated(self) -> bool:
        """Whether so much waits for the brokers that the socket should not be read (MQTT 3).

        QoS 2 that waits for its PUBREL does not count: it could never come.
        """
        return self.inbound is not None and self.inbound.unsettled >= self.context.limits.receive_max

    def expect(self, receipt: PublishReceipt) -> None:
        """A receipt for publishes of this session begins; it is answered in the order of these calls."""
        assert self.inbound is not None
        self.inbound.expect(receipt)

    @property
    def is_owed(self) -> bool:
        """Whether publishes of the client wait for their answer."""
        return self.inbound is not None and self.inbound.head is not None

    def receipt_settled(self, receipt: PublishReceipt) -> None:
        """Answer what is settled at the head of the chain (gateway.ground.receipts)."""
        inbound = self.inbound
        if inbound is None:
            return
        if self.state == CLOSED:
            inbound.drop_receipts()  # of what waited for its topic when the session ended
            return
        if inbound.is_unanswerable or inbound.head is not receipt:
            return
        while (settled := inbound.take_settled()) is not None:
            outcome = settled.outcome or 0
            if outcome & CLOSE:
                inbound.is_unanswerable = True
                self.context.unserved.append(self)  # nothing later may be answered
                return
            count = settled.count
            inbound.unsettled -= count
            if settled.packet_type == PUBREC:
                inbound.recorded(settled)
                if outcome:
                    inbound.count -= count
            else:
                inbound.count -= count
            if outcome and self.version == MQTT_5:
                kind = PubAck if settled.packet_type == PUBACK else PubRec
                for packet_id in settled.packet_ids:
                    self.send(encode(kind(packet_id, outcome), MQTT_5))
            # 3.x has no way to refuse: acknowledged, dropped and counted (mqtt.md, Security).
            elif settled.more is None:
                self.send(encode_short_ack(settled.packet_type, settled.packet_id))
            else:
                self.send(encode_acks(settled.packet_type, settled.packet_ids))

    def _release(self, packet_ids: list[int]) -> None:
        """PUBREL: forget the packet ids, answer PUBCOMP, if need be when the session's row says it."""
        inbound = self.inbound
        known = {i for i in packet_ids if inbound is not None and inbound.release(i)}
        cursor = self.cursor
        if cursor is not None and cursor.received is not None:
            for packet_id in packet_ids:
                # What is not known here may have been received on an earlier connection.
                is_right = packet_id in known or not cursor.received.is_whole
                code = 0 if is_right else int(ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)
                cursor.received.release(packet_id, code)
            self.context.planning.append(self)
            return
        if len(known) == len(packet_ids):
            self.send(encode_pubcomps(packet_ids))  # [MQTT-4.3.3-11]
            return
        for packet_id in packet_ids:
            code = 0 if packet_id in known else ReasonCode.PACKET_IDENTIFIER_NOT_FOUND
            self.send(encode(PubComp(packet_id, code), self.version))

    def completed(self, codes: dict[int, int]) -> None:
        """The row says that these are released (packet id → reason code): PUBCOMP."""
        if not any(codes.values()):
            self.send(encode_pubcomps(list(codes)))
            return
        for packet_id, code in codes.items():
            self.send(encode(PubComp(packet_id, code), self.version))

    @property
    def unreleased(self) -> dict[int, bool] | None:
        """The packet ids of QoS 2 publishes that wait for PUBREL → whether the log surely has them."""
        return None if self.inbound is None else self.inbound.unreleased

    # Acknowledgements of the client for what was sent to it (3.4 to 3.7)

    def _take_acks(self, packet_type: int, packet_ids: list[int], events: list[Event]) -> None:
        """PUBACK, PUBREC, PUBREL or PUBCOMP without a refusal in it."""
        if packet_type == PUBREL:
            self._release(packet_ids)
            return
        outbound = self.outbound
        if packet_type == PUBACK:
            if outbound is not None:
                outbound.settle(packet_ids)
        elif packet_type == PUBREC:
            for packet_id in packet_ids:
                self._take_pubrec(packet_id, 0)
        elif packet_type == PUBCOMP and outbound is not None:
            for packet_id in packet_ids:
                outbound.complete(packet_id)
        self._after_acks(events)

    def _after_acks(self, events: list[Event]) -> None:
        cursor = self.cursor
        if cursor is not None and not cursor.is_stale:
            cursor.is_stale = True
            self.context.stale.append(self)
        outbound = self.outbound
        if outbound is None:
            return
        if outbound.shared is not None:
            # Others share what waits: each message that there is room for is asked for.
            events.append(WINDOW_OPENED)
        elif (outbound.lag is not None or outbound.retained is not None) and outbound.is_half_open:
            events.append(WINDOW_OPENED)

    def _take_pubrec(self, packet_id: int, reason_code: int) -> None:
        """PUBREC: its PUBREL leaves when the row says so, or at once if there is no row."""
        is_refused = reason_code >= 0x80
        outbound = self.outbound
        planned = None if outbound is None else outbound.receive(packet_id, is_refused=is_refused)
        if is_refused:
            return
        if planned is None:
            code = ReasonCode.PACKET_IDENTIFIER_NOT_FOUND
            self.send(encode(PubRel(packet_id, code), self.version))
        elif self.cursor is None:
            self.send(encode(PubRel(packet_id), self.version))
        else:
            self.cursor.release(packet_id)
            self.context.planning.append(self)

    # Out

    def send(self, data: bytes) -> None:
        """Queue bytes for the client."""
        if not data:
            return
        if not self._out:
            self._out = data
            self.context.dirty.append(self)
        elif self._more_out is None:
            self._more_out = [data]
        else:
            self._more_out.append(data)

    def push(
        self,
        head: bytes,
        tail: bytes,
        broker: str,
        position: int,
        flags: int,
        identifiers: tuple[int, ...],
        topic: str = "",
    ) -> bool:
        """Queue a QoS 1 or 2 message, its packet id between `head` and `tail`; False when the window is full.

        A QoS 2 message of a session with a cursor waits until its plan is written. `topic` as in Planned.
        """
        outbound = self.outbound
        assert outbound is not None
        cursor = self.cursor
        planned = None
        if cursor is not None or flags & 4:
            planned = Planned(broker, position, flags, identifiers)
            planned.topic = topic
        packet_id = outbound.take_id(planned)
        if not packet_id:
            return False
        if cursor is not None:
            if not cursor.is_stale:
                cursor.is_stale = True
                self.context.stale.append(self)
            if flags & 4:
                cursor.hold(head, packet_id, tail)
                self.context.planning.append(self)
                return True
        self.send_publish(head, packet_id, tail)
        return True

    def push_planned(self, head: bytes, tail: bytes, planned: Planned) -> bool:
        """Queue a message of a shared subscription as `push` does; its plan is written with QoS 2 only."""
        outbound = self.outbound
        assert outbound is not None
        packet_id = outbound.take_id(planned)
        if not packet_id:
            return False
        cursor = self.cursor
        if cursor is not None and planned.flags & 4:
            cursor.hold(head, packet_id, tail)
            self.context.planning.append(self)
        else:
            self.send_publish(head, packet_id, tail)
        return True

    def send_publish(self, head: bytes, packet_id: int, tail: bytes) -> None:
        """Queue a PUBLISH for the client."""
        self.send(head)
        more = self._more_out
        if more is None:
            more = self._more_out = []
        more += (packet_id.to_bytes(2, "big"), tail)

    def send_pubrel(self, packet_id: int) -> None:
        """Queue a PUBREL, if its PUBCOMP has not come."""
        outbound = self.outbound
        if outbound is not None and outbound.inflight is not None and packet_id in outbound.inflight:
            self.send(encode(PubRel(packet_id), self.version))


def close_connection(session: Session, reason_code: int, reason: str, sentence: str) -> None:
    """Close a session from this side, if its connection is still there."""
    connection = session.connection
    if connection is not None:
        connection.close(reason_code, reason, sentence)
