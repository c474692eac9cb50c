"""Records to packets: one match per record, one encoding per kind of receiver, one copy per session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from gateway.ground.counters import Counters
from gateway.ground.mounts import said_topic
from gateway.ground.system_topics import SYSTEM_LEVEL
from gateway.session.lag import Lag
from gateway.session.outbound import Granted
from gateway.session.session import CLOSED, Session
from holdmq.errors import HoldMQError, RecordError
from holdmq.mqtt import (
    MQTT_5,
    FilterTrie,
    decode_publish_properties,
    delivery_properties,
    encode_publish,
    matches,
)
from holdmq.names.tenants import MOUNT, mount_of, split_tenant
from holdmq.names.topics import is_whole, level_of_topic, tag_fault
from holdmq.record.codec import (
    FIXED_SIZE,
    PHYSICAL_OFFSET_AT,
    SYS_COMPRESSED,
    SYS_QOS,
    SYS_QOS_SHIFT,
    SYS_RETAIN,
    Record,
    decode_properties,
    decode_record,
)
from holdmq.record.compression import decompress
from holdmq.service import telemetry

if TYPE_CHECKING:
    from gateway.brokers.link import BrokerLink
    from gateway.session.aliases import Aliases

LEVELS_CACHED_MAX: Final = 10_000
"""Log topics whose MQTT level is remembered: a broker's topics_max."""
WHOLE_LEVEL: Final = b"#"
"""At the end of an MQTT level, where this never is: tags are whole MQTT topics, below a mount perhaps.
"""
_MOUNT: Final = MOUNT.encode()
_NO_CLIENTS: Final = (b"$SYS", _MOUNT)
"""How no topic of a client without a tenant begins: gateways and tenants' clients speak there."""
TRIE_FROM_FILTERS: Final = 16
"""From so many filters on a lagging session is matched through the trie instead of one by one."""
MALFORMED_LOGGED_PER_S: Final = 20
"""Lines about records that cannot be delivered: one bad client must not fill a disk."""
UNDELIVERABLE: Final = (HoldMQError, UnicodeError)
"""What a record raises that no MQTT packet can carry; brokers refuse such ones, older logs may have them."""

DUP: Final = 8
"""The flag of a PUBLISH that was sent before."""

log = telemetry.get_logger()


class Outgoing:
    """One record on its way out: what its receivers share, made when first needed.

    `said_topic` is what packets have for `mqtt_topic`: only clients of its own tenant can match a mount.
    """

    __slots__ = (
        "block",
        "expiry_left_s",
        "mqtt_topic",
        "payload",
        "publisher",
        "qos",
        "record",
        "retain",
        "said_topic",
        "variants",
    )

    def __init__(self, record: Record, mqtt_topic: bytes, broker_now_ms: int) -> None:
        self.record = record
        self.mqtt_topic = mqtt_topic
        self.said_topic = said_topic(mqtt_topic) if mqtt_topic.startswith(_MOUNT) else mqtt_topic
        self.qos = (record.sys_flag & SYS_QOS) >> SYS_QOS_SHIFT
        self.retain = bool(record.sys_flag & SYS_RETAIN)
        self.payload = record.body
        self.variants: dict[tuple[bool, int, tuple[int, ...], int], tuple[bytes, bytes, int]] = {}
        self.publisher: str | None = None
        self.expiry_left_s: int | None = None
        raw = record.properties
        at = raw.find(b"\0")
        self.block = b"" if at < 0 else raw[at + 1 :]
        if self.block:
            expiry_s = decode_publish_properties(self.block).message_expiry_interval
            if expiry_s is not None:
                # [MQTT-3.3.2-5], -6: from the moment that the log took it, on the broker's clock.
                waited_s = max(0, broker_now_ms - record.store_ms) // 1000
                self.expiry_left_s = max(0, expiry_s - waited_s)
        if record.sys_flag & SYS_COMPRESSED:
            self.payload = decompress(record.body)

    @property
    def is_expired(self) -> bool:
        return self.expiry_left_s is not None and self.expiry_left_s <= 0

    def is_from(self, client_id: str) -> bool:
        """Whether this client published it (no local)."""
        if self.publisher is None:
            self.publisher = decode_properties(self.record.properties).first("CLIENT_ID") or ""
        return self.publisher == client_id

    def is_in(self, filters: tuple[str, ...]) -> bool:
        """Whether one of these filters matches."""
        topic = self.mqtt_topic.decode()
        return any(matches(topic_filter, topic) for topic_filter in filters)

    def variant(
        self, is_v5: bool, flags: int, identifiers: tuple[int, ...], alias: int = 0
    ) -> tuple[bytes, bytes, int]:
        """Head, tail and packet size for receivers that differ in their packet id only.

        `alias` as `Aliases.choose` says.
        """
        key = (is_v5, flags, identifiers, alias)
        found = self.variants.get(key)
        if found is None:
            block = delivery_properties(self.block, self.expiry_left_s, identifiers) if is_v5 else b""
            if alias:
                block += b"\x23" + abs(alias).to_bytes(2, "big")
            topic = self.said_topic if alias >= 0 else b""
            version = MQTT_5 if is_v5 else 4
            head, tail = encode_publish(version, topic, self.payload, flags, block)
            found = self.variants[key] = head, tail, len(head) + len(tail) + 2
        return found


class Records:
    """The records of a READ answer that MQTT may see and that have not expired, in log order.

    Each is decoded when it is asked for: who is full after a few wants no more of them.
    """

    __slots__ = ("_at", "_back", "_data", "_delivery", "_last", "_link", "_now_ms")

    def __init__(self, delivery: LiveDelivery, link: BrokerLink, data: bytes, now_ms: int) -> None:
        self._delivery = delivery
        self._link = link
        self._data = data
        self._now_ms = now_ms
        self._at = 0
        self._last: Outgoing | None = None
        self._back: Outgoing | None = None

    def next(self, keeps_expired: bool = False) -> Outgoing | None:
        """The next one; None = that was all."""
        back = self._back
        if back is not None:
            self._back = None
            return back
        data = self._data
        delivery = self._delivery
        while self._at < len(data):
            pos = self._at
            # Whatever the record is, the next one begins behind its size.
            size = int.from_bytes(data[pos : pos + 4], "big")
            self._at = pos + size
            if size < FIXED_SIZE or pos + size > len(data):
                self._at = len(data)
                reason = f"{size} bytes: the rest of an answer is lost"
                delivery.malformed(self._link, _position(data, pos), reason)
                return None
            try:
                record = decode_record(data, pos)
                topic = delivery.mqtt_topic(record)
                if topic is None:
                    continue
                outgoing = Outgoing(record, topic, self._now_ms)
            except UNDELIVERABLE as error:
                delivery.malformed(self._link, _position(data, pos), str(error))
                continue
            if outgoing.is_expired and not keeps_expired:
                delivery.count_expired()
                continue
            self._last = outgoing
            return outgoing
        return None

    def back(self) -> None:
        """The last one was not taken: it comes again."""
        self._back = self._last


class LiveDelivery:
    """Delivers records of brokers to the sessions of this worker. `wall_ms` is the wall clock."""

    def __init__(
        self,
        trie: FilterTrie[Session, Granted],
        counters: Counters,
        wall_ms: Callable[[], int],
    ) -> None:
        self._trie = trie
        self._counters = counters
        self._wall_ms = wall_ms
        self._levels: dict[bytes, bytes | None] = {}
        self.malformed_logged = 0
        """Lines about malformed records in this second; the worker begins the next."""

    def answer(self, link: BrokerLink, body: memoryview) -> Records:
        """The records of a READ answer, to be asked for one by one."""
        return Records(self, link, bytes(body), self._wall_ms() + link.clock_ahead_ms)

    def records(
        self, link: BrokerLink, body: memoryview, *, keeps_expired: bool = False
    ) -> Iterator[Outgoing]:
        """The records of a READ answer that MQTT may see and that have not expired, in log order."""
        records = self.answer(link, body)
        while (outgoing := records.next(keeps_expired)) is not None:
            yield outgoing

    def malformed(self, link: BrokerLink, position: int, reason: str) -> None:
        """Count a record that cannot be delivered; everything behind it still is."""
        self._counters.messages_malformed_total += 1
        if self.malformed_logged < MALFORMED_LOGGED_PER_S:
            self.malformed_logged += 1
            log.error("a record cannot be delivered", broker=link.name, position=position, reason=reason)

    def count_expired(self) -> None:
        """A message expired before it was delivered."""
        self._counters.messages_expired_total += 1

    def mqtt_topic(self, record: Record) -> bytes | None:
        """The MQTT topic; None for what MQTT cannot see."""
        topic = record.topic
        tag = record.tag
        fault = None if tag is None else tag_fault(tag)
        if fault is not None:
            raise RecordError(fault)  # [MQTT-3.3.2-1] [MQTT-3.3.2-2]
        if topic in self._levels:
            level = self._levels[topic]
        else:
            name = topic.decode()
            text = level_of_topic(name)
            if is_whole(name):
                text = mount_of(split_tenant(name)[0]) + WHOLE_LEVEL.decode()
            # What is called so is said by gateways, not by applications.
            level = None if text is None or text == SYSTEM_LEVEL else text.encode()
            if len(self._levels) >= LEVELS_CACHED_MAX:
                self._levels.clear()
            self._levels[topic] = level
        if level is None:
            return None
        if level.endswith(WHOLE_LEVEL):
            mount = level[:-1]
            if not tag or tag.startswith(b"$" if mount else _NO_CLIENTS):
                return None
            return mount + tag if mount else tag
        if tag is None:
            return level or None
        return b"%b/%b" % (level, tag)

    def live(self, link: BrokerLink, body: memoryview, is_late: bool = False) -> None:
        """Deliver what the live reader got; `is_late`: what paused topics had kept."""
        match = self._trie.match
        for outgoing in self.records(link, body):
            pairs = match(outgoing.mqtt_topic)
            try:
                if len(pairs) == 1:
                    session, granted = pairs[0]
                    self._live_one(link, outgoing, session, [granted], is_late)
                elif pairs:
                    merged: dict[Session, list[Granted]] = {}
                    for session, granted in pairs:
                        merged.setdefault(session, []).append(granted)
                    for session, several in merged.items():
                        self._live_one(link, outgoing, session, several, is_late)
            except UNDELIVERABLE as error:
                self.malformed(link, outgoing.record.physical_offset, str(error))

    def _live_one(
        self,
        link: BrokerLink,
        outgoing: Outgoing,
        session: Session,
        several: list[Granted],
        is_late: bool,
    ) -> None:
        outbound = session.outbound
        if outbound is None or session.state == CLOSED:
            return
        chosen = self._choose(outgoing, session, several)
        if chosen is None:
            return
        flags, identifiers = chosen
        is_sent = bool(flags & 6) or not outbound.is_socket_full
        if outbound.retained is not None and outgoing.retain and is_sent:
            outbound.retained.came(outgoing.mqtt_topic, link.name, outgoing.record.physical_offset)
        aliases = outbound.aliases
        alias = 0
        if aliases is None:
            head, tail, size = outgoing.variant(session.version == MQTT_5, flags, identifiers)
        else:
            head, tail, size, alias = aliased(outgoing, session, aliases, flags, identifiers)
        if session.packet_max and size > session.packet_max:  # [MQTT-3.1.2-25]
            self._counters.messages_dropped_size_total += 1
            return
        if not flags & 6:
            lag = outbound.lag
            if lag is not None and not is_late and lag.replays(link.name, outgoing.record.physical_offset):
                return
            if outbound.is_socket_full:
                self._counters.messages_dropped_slow_total += 1
            else:
                session.send(head)
                outbound.messages += 1
                self._counters.messages_out_qos0_total += 1
                if aliases is not None:
                    aliases.sent(outgoing.said_topic, alias)
            return
        position = outgoing.record.physical_offset
        lag = outbound.lag
        if lag is not None:
            if is_late:
                if lag.go_back(link.name, position):
                    return
            elif not lag.wants_live(link.name, position):
                return
            if lag.is_over:
                outbound.lag = lag = None
                self._counters.lagging_sessions -= 1
        if not outbound.is_socket_full and session.push(head, tail, link.name, position, flags, identifiers):
            self._sent(flags)
            if aliases is not None:
                aliases.sent(outgoing.said_topic, alias)
            return
        if lag is None:
            lag = outbound.lag = Lag()
            self._counters.lagging_sessions += 1
            self._counters.lag_total += 1
        lag.fall_behind(link.name, position, is_late=is_late)

    def own(self, outgoing: Outgoing, session: Session, several: list[Granted], is_first: bool) -> None:
        """Deliver a message of the gateway's own with QoS 0; `is_first`: as the client has subscribed."""
        outbound = session.outbound
        chosen = self._choose(outgoing, session, several)
        if outbound is None or chosen is None:
            return
        flags = 1 if is_first else chosen[0] & 1  # [MQTT-3.3.1-8] [MQTT-3.3.1-12] [MQTT-3.3.1-13]
        head, _, size = outgoing.variant(session.version == MQTT_5, flags, chosen[1])
        if session.packet_max and size > session.packet_max:
            self._counters.messages_dropped_size_total += 1
        elif outbound.is_socket_full:
            self._counters.messages_dropped_slow_total += 1
        else:
            session.send(head)
            outbound.messages += 1
            self._counters.messages_out_qos0_total += 1

    def again(self, link: BrokerLink, outgoing: Outgoing, session: Session) -> bool:
        """Deliver a record of a catch-up reader to its session; False when its window or socket is full.

        QoS 0 is not replayed to sessions that lag (mqtt.md, Rules of delivery), but for those that asked for
        the past: the live feed had it.
        """
        try:
            return self._again(link, outgoing, session)
        except UNDELIVERABLE as error:
            self.malformed(link, outgoing.record.physical_offset, str(error))
            return True

    def again_all(self, link: BrokerLink, records: Records, session: Session, lag: Lag) -> bool:
        """Deliver records of a catch-up reader to a session; False when it is full: the rest waits."""
        broker = link.name
        first = lag.position_at(broker) or 0
        while (outgoing := records.next()) is not None:
            position = outgoing.record.physical_offset
            if position >= first and not self.again(link, outgoing, session):
                records.back()
                lag.reach(broker, position)
                return False
        return True

    def _again(self, link: BrokerLink, outgoing: Outgoing, session: Session) -> bool:
        outbound = session.outbound
        if outbound is None or session.state == CLOSED:
            return True
        position = outgoing.record.physical_offset
        several = [
            granted
            for granted in self._matching(outgoing.mqtt_topic, session)
            if granted.starts is None or position >= (granted.starts.get(link.name) or 0)
        ]
        if not several:
            return True
        chosen = self._choose(outgoing, session, several)
        if chosen is None:
            return True
        lag = outbound.lag
        is_qos0 = not chosen[0] & 6
        if is_qos0 and (lag is None or lag.replaying is None or link.name not in lag.replaying):
            return True
        if outbound.retained is not None and outgoing.retain:
            outbound.retained.came(outgoing.mqtt_topic, link.name, position)
        aliases = outbound.aliases
        alias = 0
        if aliases is None:
            head, tail, size = outgoing.variant(session.version == MQTT_5, *chosen)
        else:
            head, tail, size, alias = aliased(outgoing, session, aliases, *chosen)
        if session.packet_max and size > session.packet_max:
            self._counters.messages_dropped_size_total += 1
            return True
        if outbound.is_socket_full:
            return False
        if is_qos0:
            session.send(head)
            outbound.messages += 1
            self._counters.messages_out_qos0_total += 1
        elif session.push(head, tail, link.name, position, *chosen):
            self._sent(chosen[0])
        else:
            return False
        if aliases is not None:
            aliases.sent(outgoing.said_topic, alias)
        return True

    def _sent(self, flags: int) -> None:
        if flags & 4:
            self._counters.messages_out_qos2_total += 1
        else:
            self._counters.messages_out_qos1_total += 1

    def resend(self, link: BrokerLink, body: memoryview, session: Session, packet_ids: list[int]) -> None:
        """Send what was in flight again [MQTT-4.4.0-1]; `body` has the records that are still there."""
        outbound = session.outbound
        if outbound is None or outbound.inflight is None or session.state == CLOSED:
            return
        found = {o.record.physical_offset: o for o in self.records(link, body, keeps_expired=True)}
        for packet_id in packet_ids:
            planned = outbound.inflight.get(packet_id)
            if planned is None or planned.is_released:
                continue
            outgoing = found.get(planned.position)
            if outgoing is None or (outgoing.is_expired and not planned.flags & 4):  # [MQTT-4.3.3-7]
                del outbound.inflight[packet_id]
                self._counters.messages_planned_lost_total += outgoing is None
                continue
            flags = planned.flags | DUP  # [MQTT-3.3.1-1]
            head, tail, _ = outgoing.variant(session.version == MQTT_5, flags, planned.identifiers)
            session.send_publish(head, packet_id, tail)
            self._counters.messages_again_total += 1

    def _matching(self, mqtt_topic: bytes, session: Session) -> list[Granted]:
        outbound = session.outbound
        assert outbound is not None
        subscriptions = outbound.subscriptions
        if len(subscriptions) >= TRIE_FROM_FILTERS:
            return [granted for other, granted in self._trie.match(mqtt_topic) if other is session]
        text = mqtt_topic.decode()
        return [granted for topic_filter, granted in subscriptions.items() if matches(topic_filter, text)]

    def _choose(
        self, outgoing: Outgoing, session: Session, several: list[Granted]
    ) -> tuple[int, tuple[int, ...]] | None:
        """The flags and subscription ids of the one copy; None when only no-local filters match."""
        qos = -1
        retain = False
        identifiers: tuple[int, ...] = ()
        for granted in several:
            if granted.no_local and outgoing.is_from(session.client_id):  # [MQTT-3.8.3-3]
                continue
            if granted.left_out is not None and outgoing.is_in(granted.left_out):
                continue
            qos = max(qos, min(outgoing.qos, granted.qos))  # [MQTT-3.3.4-2] [MQTT-3.8.4-8]
            retain = retain or (outgoing.retain and granted.retain_as_published)  # [MQTT-3.3.1-12], -13
            if granted.identifier is not None:  # [MQTT-3.3.4-3], -4
                identifiers += (granted.identifier,)
        return None if qos < 0 else (qos << 1 | retain, identifiers)


def aliased(
    outgoing: Outgoing, session: Session, aliases: Aliases, flags: int, identifiers: tuple[int, ...]
) -> tuple[bytes, bytes, int, int]:
    """Head, tail, packet size and alias of a PUBLISH to a client that takes topic aliases."""
    # A QoS 2 message of a persistent session leaves when its plan is written: others may overtake it.
    may_set = session.cursor is None or not flags & 4
    alias = aliases.choose(outgoing.said_topic, may_set)
    head, tail, size = outgoing.variant(True, flags, identifiers, alias)
    if alias > 0 and session.packet_max and size > session.packet_max:
        alias = 0
        head, tail, size = outgoing.variant(True, flags, identifiers)
    return head, tail, size, alias


def _position(data: bytes, pos: int) -> int:
    """The log position of the record at `pos`, as far as it says."""
    at = pos + PHYSICAL_OFFSET_AT
    return int.from_bytes(data[at : at + 8], "big")
