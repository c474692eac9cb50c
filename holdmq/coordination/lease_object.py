"""A shard as an object of the kind Lease of Kubernetes: what is in it, and when its holder is gone.

::

    metadata.annotations   holdmq/shard           whose it is: CLUSTER/SHARD
                           holdmq/state           S as JSON
                           holdmq/state-version   the version of S, which renewals leave as it is
    spec                   holderIdentity         REPLICA_TOKEN; the token is new with each acquisition
                           renewTime, acquireTime, leaseDurationSeconds, leaseTransitions

It is changed by patches that hold for one resourceVersion only. All fields of others stay. Clocks of machines
are never compared: a holder is gone when an observer has seen the same renewal for a whole duration by its
own clock, as in client-go's leader election.
"""

from __future__ import annotations

import copy
import datetime as dt
import hashlib
import math
import re
import secrets
from typing import Any, Final, NamedTuple

from holdmq.coordination.api import ShardState
from holdmq.errors import ShardStateError

SHARD: Final = "holdmq/shard"
STATE: Final = "holdmq/state"
STATE_VERSION: Final = "holdmq/state-version"
UNKNOWN_DURATION_S: Final = 60.0
"""What a holder has that somebody wrote without a duration: the longest that may be configured."""
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_FIRST_VERSION_BITS: Final = 48

LeaseFields = dict[str, Any]
"""The object as JSON."""


def name_of(cluster: str, shard: str) -> str:
    """The object's name: CLUSTER.SHARD, each as it is if Kubernetes takes it, otherwise with a digest."""
    return ".".join(map(_label, (cluster, shard)))


def _label(name: str) -> str:
    if _NAME.fullmatch(name):
        return name
    readable = re.sub(r"[^a-z0-9]+", "-", name.lower())[:40].strip("-")
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return f"{readable}-{digest}" if readable else digest


class LeaseHolding(NamedTuple):
    """The holder of the lease, as it says. `identity` "" = nobody; `renewal` differs in each renewal."""

    identity: str
    renewal: tuple[str, str]
    duration_s: float


class HeldState(NamedTuple):
    """S as the object has it; `version` 0 = it has none."""

    version: int
    state: ShardState | None


def new_lease(name: str, owner: str) -> LeaseFields:
    """An object for the shard `owner` (CLUSTER/SHARD) with neither state nor holder."""
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "annotations": {SHARD: owner}},
        "spec": {},
    }


def version_of(lease: LeaseFields, owner: str) -> int:
    """The version of S in it; 0 = it has none. Raises ShardStateError if it is damaged or another shard's."""
    annotations = _annotations(lease)
    found = annotations.get(SHARD)
    where = f"the Lease {_name(lease)} in Kubernetes"
    if found != owner:
        raise ShardStateError(
            f"{where} is of {str(found)[:200]!r} by its annotation {SHARD}, not of {owner!r}: give one of "
            "both another name (broker.name, cluster.name), or delete the object if nothing uses it"
        )
    if STATE not in annotations and STATE_VERSION not in annotations:
        return 0
    text = annotations.get(STATE_VERSION)
    if not isinstance(text, str) or not re.fullmatch(r"[1-9][0-9]{0,18}", text):
        raise ShardStateError(
            f"{where} has {STATE_VERSION} = {text!r:.64}, which is no version: restore it from a backup"
        )
    return int(text)


def state_of(lease: LeaseFields, owner: str) -> HeldState:
    """S in it, and its version. Raises ShardStateError."""
    version = version_of(lease, owner)
    if not version:
        return HeldState(0, None)
    where = f"the annotation {STATE} of the Lease {_name(lease)} in Kubernetes"
    return HeldState(version, ShardState.decode(str(_annotations(lease).get(STATE, "")), where))


def with_state(lease: LeaseFields, version: int, state: ShardState) -> tuple[LeaseFields, int]:
    """The object with another S after `version`, and the version of that.

    The first one is any: an object that was deleted and made again must not give versions twice.
    """
    changed = copy.deepcopy(lease)
    new = version + 1 if version else 1 + secrets.randbits(_FIRST_VERSION_BITS)
    annotations = {**_annotations(lease), STATE: state.encode().decode(), STATE_VERSION: str(new)}
    changed["metadata"]["annotations"] = annotations
    return changed, new


def holding_of(lease: LeaseFields) -> LeaseHolding:
    """Give the holder as the object says it."""
    spec = lease.get("spec") or {}
    duration = spec.get("leaseDurationSeconds")
    return LeaseHolding(
        identity=str(spec.get("holderIdentity") or ""),
        renewal=(str(spec.get("acquireTime")), str(spec.get("renewTime"))),
        duration_s=float(duration) if type(duration) is int and duration > 0 else UNKNOWN_DURATION_S,
    )


def replica_of(identity: str) -> str:
    """The replica id in a holder's identity; all of it, if somebody else wrote it."""
    replica_id, _, token = identity.rpartition("_")
    return replica_id if re.fullmatch("[0-9a-f]{16}", token) else identity


def new_identity(replica_id: str) -> str:
    """What the next acquisition of a replica is called."""
    return f"{replica_id}_{secrets.token_hex(8)}"


def held_by(lease: LeaseFields, identity: str, ttl_s: float, moment: dt.datetime) -> LeaseFields:
    """The object as taken or renewed by `identity` at `moment`, for `ttl_s` in whole seconds, rounded up."""
    changed = copy.deepcopy(lease)
    spec = changed["spec"] = dict(lease.get("spec") or {})
    is_new = spec.get("holderIdentity") != identity
    # A clock that was set back to the very microsecond would make a renewal that nobody sees.
    if _micro(moment) in (spec.get("renewTime"), spec.get("acquireTime")):
        moment += dt.timedelta(microseconds=1)
    if is_new:
        transitions = spec.get("leaseTransitions")
        spec["leaseTransitions"] = (transitions if type(transitions) is int else 0) + 1
        spec["acquireTime"] = _micro(moment)
    spec |= {
        "holderIdentity": identity,
        "renewTime": _micro(moment),
        "leaseDurationSeconds": math.ceil(ttl_s),
    }
    return changed


def released(lease: LeaseFields) -> LeaseFields:
    """The object without a holder."""
    changed = copy.deepcopy(lease)
    changed["spec"] = {**(lease.get("spec") or {}), "holderIdentity": ""}
    return changed


def patch_of(lease: LeaseFields, changed: LeaseFields) -> LeaseFields:
    """What makes `lease` `changed`, as long as it still has the resourceVersion that it has here."""
    annotations, known = _annotations(changed), _annotations(lease)
    spec, known_spec = changed["spec"], lease.get("spec") or {}
    return {
        "metadata": {
            "resourceVersion": lease["metadata"].get("resourceVersion", ""),
            "annotations": {key: value for key, value in annotations.items() if known.get(key) != value},
        },
        "spec": {key: value for key, value in spec.items() if known_spec.get(key) != value},
    }


class LeaseObserver:
    """Tells by an observer's own clock whether a holder is gone; `now_s` of a clock that never goes back."""

    __slots__ = ("_holding", "_seen_at_s")

    def __init__(self) -> None:
        self._holding = LeaseHolding("", ("", ""), 0.0)
        self._seen_at_s = 0.0

    def saw(self, holding: LeaseHolding, now_s: float) -> None:
        """The object said this in an answer that arrived at `now_s`."""
        if (holding.identity, holding.renewal) != (self._holding.identity, self._holding.renewal):
            self._seen_at_s = now_s
        self._holding = holding

    def holder(self, now_s: float) -> str:
        """The identity of who holds it; "" = nobody, or it was not renewed for its whole duration."""
        return self._holding.identity if now_s < self.ends_at_s() else ""

    def ends_at_s(self) -> float:
        """When the holder is gone unless a renewal is seen before."""
        return self._seen_at_s + self._holding.duration_s


def _annotations(lease: LeaseFields) -> dict[str, Any]:
    return dict(lease.get("metadata", {}).get("annotations") or {})


def _name(lease: LeaseFields) -> str:
    return str(lease.get("metadata", {}).get("name", "?"))[:253]


def _micro(moment: dt.datetime) -> str:
    """A MicroTime of Kubernetes: six digits, always."""
    return moment.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
