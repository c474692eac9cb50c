"""MQTT 3.1, 3.1.1 and 5.0 without I/O: packets, codec, topic filters, reason codes.

A server's connection, from bytes to answers::

    topics = TopicTable(create=route)        # one per worker: topic bytes → your own entry
    decoder = Decoder(topics, max_packet_size)               # one per connection

    try:
        items = decoder.feed(data)                           # bytes of any size, any cut
    except MqttError as error:
        items, broken = error.decoded, error                 # valid packets before the violation
    for item in items:
        if type(item) is PublishRun:
            buffer = item.buffer
            for entry, flags, packet_id, start, end, properties in item.messages:
                qos = flags >> 1 & 3                         # payload: buffer[start:end]
        elif type(item) is AckRun:                           # short acknowledgements, success
            if item.packet_type == PUBACK:
                settle(item.packet_ids)
        else:                                                # Connect, Subscribe, PubAck, …
            match item.packet_type: ...

    transport.write(encode(ConnAck(reason_code=0), decoder.version))
    transport.write(encode_pubacks(packet_ids))              # after confirmation, in one go
    # and if `broken`: `DISCONNECT` with its reason code in MQTT 5, then close in every version.

When CONNECT itself was wrong, answer it by `decoder.version`: 5: a CONNACK with the reason code; 3 or
4: a CONNACK for 0x84 and 0x85 (return codes 1 and 2), nothing for other reasons; 0 (what came is not
MQTT): nothing. Then close [MQTT-3.1.4-1].

What the loop must know:

- The first packet is a `Connect` (anything else raised); `decoder.version` is its level from then on.
  A second one, and every packet that a client may not send, raise.
- A PUBLISH is never a `Publish` and a four byte acknowledgement never a `PubAck`/`PubRec`/`PubRel`/
  `PubComp`: those classes come for acknowledgements that carry a reason code or properties, and are
  what `encode` takes. `publishes(run)` makes `Publish` objects for clients and tests, whose table is
  `CheckedTopics(bytes)`.
- `flags`, `properties` and the rest of a message's tuple are described at `PublishRun`. The
  property block has been checked; read its fields with `decode_publish_properties` when you need them.
- Topic aliases are resolved; call `decoder.allow_topic_aliases(maximum)` before CONNACK offers them.
- The decoder checks what a packet says by itself. What needs the session is the session's: packet ids
  in use, receive maximum, session expiry raised from 0 in DISCONNECT, QoS and retain that CONNACK did
  not offer, authentication method unchanged in AUTH, levels and lengths of topics and filters.
- `feed` takes `bytes` (compiled, it takes nothing else). A burst decodes in one go: a feed costs time
  in proportion to its size, so read at most some 64 KiB at a time.

Fan-out: the parts around the packet id are made once per (version, QoS, flags, properties)::

    block = delivery_properties(stored_block, expiry_left_s, subscription_ids)       # MQTT 5
    head, tail = encode_publish(version, topic, payload, qos << 1 | retain, block)
    pieces += (head, packet_id.to_bytes(2, "big"), tail)     # QoS 0: head alone, tail is b""
    again = republish(head)                                  # DUP set, for resending

Matching::

    parsed = parse_filter(subscription.topic_filter)         # share_name (or None), topic_filter
    trie: FilterTrie[Session, Options] = FilterTrie()
    is_new = trie.add(parsed.topic_filter, session, options)
    for session, options in trie.match(topic_bytes): ...     # once per matching filter
    is_gone = trie.remove(parsed.topic_filter, session)

Misuse of encoders raises UsageError; what a peer does wrong raises MqttError, never anything else.
"""

from __future__ import annotations

from holdmq.mqtt.acks import (
    AckRun,
    encode_acks,
    encode_pubacks,
    encode_pubcomps,
    encode_pubrecs,
    encode_pubrels,
    encode_short_ack,
)
from holdmq.mqtt.codec import MAX_PACKET_SIZE, Decoder, encode
from holdmq.mqtt.filters import (
    ParsedFilter,
    check_filter,
    check_topic,
    is_topic_name,
    matches,
    parse_filter,
    plus_levels,
)
from holdmq.mqtt.packets import (
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Will,
)
from holdmq.mqtt.properties import NO_PROPERTIES, Properties, encode_block
from holdmq.mqtt.protocol import (
    AUTH,
    CLIENT,
    CONNACK,
    CONNECT,
    DISCONNECT,
    DUP,
    MQTT_3_1,
    MQTT_3_1_1,
    MQTT_5,
    PINGREQ,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    QOS_MASK,
    RETAIN,
    SERVER,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
)
from holdmq.mqtt.publish import (
    PublishRun,
    decode_publish_properties,
    delivery_properties,
    encode_publish,
    publishes,
    read_lone_publish,
    republish,
)
from holdmq.mqtt.reasons import MqttError, ReasonCode
from holdmq.mqtt.topics import TOPICS_CACHED_MAX, CheckedTopics
from holdmq.mqtt.trie import FilterTrie

__all__ = [
    "AUTH",
    "CLIENT",
    "CONNACK",
    "CONNECT",
    "DISCONNECT",
    "DUP",
    "MAX_PACKET_SIZE",
    "MQTT_3_1",
    "MQTT_3_1_1",
    "MQTT_5",
    "NO_PROPERTIES",
    "PINGREQ",
    "PINGRESP",
    "PUBACK",
    "PUBCOMP",
    "PUBLISH",
    "PUBREC",
    "PUBREL",
    "QOS_MASK",
    "RETAIN",
    "SERVER",
    "SUBACK",
    "SUBSCRIBE",
    "TOPICS_CACHED_MAX",
    "UNSUBACK",
    "UNSUBSCRIBE",
    "AckRun",
    "Auth",
    "CheckedTopics",
    "ConnAck",
    "Connect",
    "Decoder",
    "Disconnect",
    "FilterTrie",
    "MqttError",
    "Packet",
    "ParsedFilter",
    "PingReq",
    "PingResp",
    "Properties",
    "PubAck",
    "PubComp",
    "PubRec",
    "PubRel",
    "Publish",
    "PublishRun",
    "ReasonCode",
    "SubAck",
    "Subscribe",
    "Subscription",
    "UnsubAck",
    "Unsubscribe",
    "Will",
    "check_filter",
    "check_topic",
    "decode_publish_properties",
    "delivery_properties",
    "encode",
    "encode_acks",
    "encode_block",
    "encode_pubacks",
    "encode_pubcomps",
    "encode_publish",
    "encode_pubrecs",
    "encode_pubrels",
    "encode_short_ack",
    "is_topic_name",
    "matches",
    "parse_filter",
    "plus_levels",
    "publishes",
    "read_lone_publish",
    "republish",
]
