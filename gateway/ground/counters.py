"""What a worker counts, as plain integers: the hot path adds to attributes, the parent exports them."""

from __future__ import annotations

from collections import Counter
from typing import Final

HELP: Final = {
    "connections": "Connections open now.",
    "connections_max": "connections_max of all workers.",
    "sessions": "Clients connected (CONNECT accepted) now.",
    "connects_total": "CONNECT packets accepted.",
    "disconnects_total": "Connections of accepted clients that ended, whoever ended them.",
    "connections_not_logged_total": "Lines about connections that were left out of the log.",
    "addresses": "Addresses with connections now; 0 without connections_per_address_max.",
    "bans": "Clients that are banned now, as they connected too often.",
    "bans_total": "Clients banned.",
    "fleet_bans": "Bans of the whole fleet that are followed here.",
    "fleet_banned_total": "Connections refused or ended as an operator has banned the client.",
    "fleet_quotas": "Quotas of the whole cluster that are followed here.",
    "quota_paused": "Clients not read now, as the quota of their user or tenant is used up.",
    "quota_paused_total": "Times that a socket was not read as the quota of its user or tenant was used up.",
    "unauthenticated_bytes": "Bytes held of clients that are not admitted yet.",
    "login_failures_total": "Logins that were tried, and whose password was wrong.",
    "logins_held_total": "Logins that were refused without being tried, as too many before them had failed.",
    "login_holds": "Addresses and users whose logins have failed too often, and have to wait.",
    "login_holds_total": "Times that an address or a user began to be held back.",
    "takeovers_total": "Connections closed because their client id connected again.",
    "messages_in_qos0_total": "Publishes received with QoS 0.",
    "messages_in_qos1_total": "Publishes received with QoS 1.",
    "messages_in_qos2_total": "Publishes received with QoS 2, repeats not counted.",
    "messages_delayed_total": "Publishes to $delayed that brokers confirmed, and release at their time.",
    "messages_repeated_total": "QoS 2 publishes received again before their release.",
    "messages_out_qos0_total": "Messages sent with QoS 0.",
    "messages_out_qos1_total": "Messages sent with QoS 1.",
    "messages_out_qos2_total": "Messages sent with QoS 2.",
    "messages_again_total": "Messages sent again to sessions that came back, with DUP.",
    "messages_planned_lost_total": "Deliveries under way whose record was gone when their session came back.",
    "sessions_behind_total": "Times that retention had passed the place of a session.",
    "messages_dropped_slow_total": "QoS 0 messages not sent because the subscriber's socket was full.",
    "messages_dropped_size_total": "Messages larger than the subscriber's maximum packet size.",
    "messages_expired_total": "Messages whose expiry interval ended before delivery.",
    "messages_malformed_total": "Records that no MQTT packet can carry.",
    "bytes_in_total": "Bytes received from clients.",
    "bytes_out_total": "Bytes sent to clients.",
    "wills_total": "Wills published.",
    "subscriptions": "Subscriptions now.",
    "shared_subscriptions": "Shared subscriptions ($share) now.",
    "shared_messages_total": "Messages sent for shared subscriptions.",
    "shared_messages_returned_total": "Messages given back to their share group: its member took no more.",
    "filters": "Distinct topic filters now.",
    "suback_late_total": "SUBACKs sent before every broker had confirmed the filter.",
    "produce_batches_total": "PRODUCE batches sent.",
    "produce_records_total": "Records that brokers confirmed.",
    "produce_refused_records_total": "Records refused for good or given up.",
    "produce_resent_batches_total": "Batches sent again.",
    "produce_epochs_total": "Times that a producer numbered anew after a give-up.",
    "produce_pending_bytes": "Bytes handed to brokers and not confirmed.",
    "sockets_paused_total": "Times that a socket was not read because of its broker or its window.",
    "rate_paused_total": "Times that a socket was not read because its client was over its publish rate.",
    "overload_level": "1: a worker refuses new connections; 2: it also does not read who sends most.",
    "overload_total": "Times that a worker became overloaded.",
    "overload_refused_total": "Connections refused by overloaded workers.",
    "overload_paused": "Clients that are not read now because their worker is overloaded.",
    "shed_total": "Clients sent to other gateways because their worker had more than shed_above.",
    "memory_bytes": "Resident memory of the workers, pages that they share counted in each.",
    "topics_diverted_total": "Times that a client might not create a topic so soon: it went to mqtt-other.",
    "traces": "Traces of clients that run now.",
    "access_asks_total": "Questions about clients and topics that were asked: plug-ins, checks of passwords.",
    "access_asks_waiting": "Questions to plug-ins without an answer now.",
    "access_cached_total": "Questions that were answered from memory.",
    "access_answers": "Answers remembered now.",
    "access_failures_total": "Questions that nobody could answer: a plug-in failed, or took too long.",
    "access_threads_lost": "Threads given up now, as a plug-in blocks them.",
    "password_checks_total": "Hashes of passwords that were computed.",
    "password_checks_waiting": "Passwords that wait to be checked now.",
    "password_checks_refused_total": "Passwords that were not checked: no place, or no thread in time.",
    "access_reloads_failed_total": "Changed files of access that were of no use.",
    "access_rehashed_total": "Weak hashes of the password file that were made anew at a login.",
    "access_rehashes_left_total": "Weak hashes that stayed: the file is not to be written, or too many.",
    "filters_revoked_total": "Subscriptions that ended as they are not allowed any more.",
    "client_ids_revoked_total": "Connections that ended as their client id is not allowed any more.",
    "tenants_changed_total": "Connections that ended as their user is another tenant's now.",
    "topics_waiting": "Connections that wait for a topic to be created.",
    "retained_in_total": "Retained messages that brokers took, or took away.",
    "retained_out_total": "Retained messages sent to who subscribed.",
    "retained_owed": "Sessions that are owed retained messages now.",
    "retained_slices_total": "Slices of retained messages that brokers were asked for.",
    "retained_pending_bytes": "Bytes of retained messages handed to brokers and not confirmed.",
    "lagging_sessions": "Subscribers that left the live feed and catch up from the log.",
    "lag_total": "Times that a subscriber left the live feed.",
    "catchup_readers": "Catch-up readers open now.",
    "catchup_turns_total": "Catch-up readers opened.",
    "catchup_shared_total": "Sessions that were served by a catch-up reader together with others.",
    "catchup_records_total": "Records that catch-up readers were given.",
    "reads_total": "READ answers from brokers.",
    "records_read_total": "Records that live readers were given.",
    "replays_total": "SUBSCRIBEs whose filters began in the past.",
    "offset_ahead_total": "Times that a broker's log had been cut below a reader's position.",
    "loop_lag_ms_max": "Longest delay of the event loop in the last second, in milliseconds.",
    "draining": "1 while the gateway drains.",
    "brokers_up": "Brokers connected now.",
    "brokers_known": "Brokers in the route.",
}
"""Name → help of every number a worker exports; a Counter by the reason is added as `refused`."""

GAUGES: Final = frozenset(name for name in HELP if not name.endswith("_total"))

SLOTS: Final = tuple(HELP)


class Counters:
    """The numbers of one worker; `refused` counts by reason, a bounded set of names in the code."""

    __slots__ = (*SLOTS, "refused")

    connections: int
    connections_max: int
    sessions: int
    connects_total: int
    disconnects_total: int
    connections_not_logged_total: int
    addresses: int
    bans: int
    bans_total: int
    fleet_bans: int
    fleet_banned_total: int
    fleet_quotas: int
    quota_paused: int
    quota_paused_total: int
    unauthenticated_bytes: int
    login_failures_total: int
    logins_held_total: int
    login_holds: int
    login_holds_total: int
    takeovers_total: int
    messages_in_qos0_total: int
    messages_in_qos1_total: int
    messages_in_qos2_total: int
    messages_delayed_total: int
    messages_repeated_total: int
    messages_out_qos0_total: int
    messages_out_qos1_total: int
    messages_out_qos2_total: int
    messages_again_total: int
    messages_planned_lost_total: int
    sessions_behind_total: int
    messages_dropped_slow_total: int
    messages_dropped_size_total: int
    messages_expired_total: int
    messages_malformed_total: int
    bytes_in_total: int
    bytes_out_total: int
    wills_total: int
    subscriptions: int
    shared_subscriptions: int
    shared_messages_total: int
    shared_messages_returned_total: int
    filters: int
    suback_late_total: int
    produce_batches_total: int
    produce_records_total: int
    produce_refused_records_total: int
    produce_resent_batches_total: int
    produce_epochs_total: int
    produce_pending_bytes: int
    sockets_paused_total: int
    rate_paused_total: int
    overload_level: int
    overload_total: int
    overload_refused_total: int
    overload_paused: int
    shed_total: int
    memory_bytes: int
    topics_diverted_total: int
    traces: int
    access_asks_total: int
    access_asks_waiting: int
    access_cached_total: int
    access_answers: int
    access_failures_total: int
    access_threads_lost: int
    password_checks_total: int
    password_checks_waiting: int
    password_checks_refused_total: int
    access_reloads_failed_total: int
    access_rehashed_total: int
    access_rehashes_left_total: int
    filters_revoked_total: int
    client_ids_revoked_total: int
    tenants_changed_total: int
    topics_waiting: int
    retained_in_total: int
    retained_out_total: int
    retained_owed: int
    retained_slices_total: int
    retained_pending_bytes: int
    lagging_sessions: int
    lag_total: int
    catchup_readers: int
    catchup_turns_total: int
    catchup_shared_total: int
    catchup_records_total: int
    reads_total: int
    records_read_total: int
    replays_total: int
    offset_ahead_total: int
    loop_lag_ms_max: int
    draining: int
    brokers_up: int
    brokers_known: int
    refused: Counter[str]

    def __init__(self) -> None:
        for name in SLOTS:
            setattr(self, name, 0)
        self.refused = Counter()

    def snapshot(self) -> dict[str, int]:
        """All numbers by name."""
        return {name: getattr(self, name) for name in SLOTS}
