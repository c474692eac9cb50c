"""The port to etcd, 3.5.6 or newer: S and L of a shard are two keys, L with a lease of etcd's.

::

    PREFIX SHARD/state     S as JSON; its version is the key's mod_revision
    PREFIX SHARD/lease     L: the replica id of its holder; the acquisition is the lease's id

All reads are linearizable, so that a member that is cut off answers none. S is compared by its value, too,
where that is known: revisions of an etcd that was restored from a backup are given a second time.

Renewing a lease is no entry of etcd's log: a leader that was deposed and does not know it would say yes while
the lease runs out at the real one (etcd#15247). So a renewal counts only when a linearizable read after it,
at the same member, shows that member in the same raft term: no other leader had come up before it then.
"""

from __future__ import annotations

import asyncio
import base64
import math
from collections import OrderedDict
from typing import Any, Final, NamedTuple

from holdmq.coordination.api import ShardSnapshot, ShardState, is_replica_id
from holdmq.coordination.etcd_gateway import EtcdAccess, EtcdGateway, EtcdRefusalError
from holdmq.errors import CoordinatorError, UsageError

VALUES_MAX: Final = 64
"""Versions of S whose values are remembered: S changes a few times an hour."""
_PAUSE_MIN_S: Final = 0.1
_PAUSE_MAX_S: Final = 1.0
"""Between attempts to watch while no member does."""
_RENEWALS_MAX: Final = 3
"""Attempts to renew while etcd elects leaders; one election in a call is rare."""


class EtcdCoordinator:
    """One replica's client of S and L of `shard` (`holdmq.coordination.api.Coordinator`).

    `prefix` begins all keys of an installation and ends with a slash. `timeout_s` bounds each call.
    """

    def __init__(
        self, access: EtcdAccess, prefix: str, shard: str, replica_id: str, timeout_s: float
    ) -> None:
        if not is_replica_id(replica_id):
            raise UsageError(f"{replica_id!r} is no replica id")
        self._gateway = EtcdGateway(access)
        self._timeout_s = timeout_s
        self._replica_id = replica_id
        self._folder = f"{prefix}{shard}/"
        self._state_key = _base64(f"{self._folder}state")
        self._lease_key = _base64(f"{self._folder}lease")
        self._lease_id = 0
        self._ttl_s = 0.0
        self._values: OrderedDict[int, str] = OrderedDict()

    async def read(self) -> ShardSnapshot:
        """Give S and L by a linearizable read."""
        return (await self._read("read", self._until_s())).snapshot(self._folder)

    async def compare_and_set(self, version: int, state: ShardState) -> int | None:
        """Make S `state` if its version still is `version`; the new version, None = not done."""
        value = _base64(state.encode())
        compare: list[dict[str, Any]] = [
            {"key": self._state_key, "target": "MOD", "result": "EQUAL", "mod_revision": str(version)}
        ]
        if version in self._values:
            known = self._values[version]
            compare.append({"key": self._state_key, "target": "VALUE", "result": "EQUAL", "value": known})
        body = {"compare": compare, "success": [{"request_put": {"key": self._state_key, "value": value}}]}
        # Never sent twice: the second time would meet what the first has done.
        answer = await self._gateway.call(
            "compare_and_set", "/v3/kv/txn", body, self._until_s(), is_repeatable=False
        )
        if not answer.fields.get("succeeded"):
            return None
        new = answer.parsed("compare_and_set", lambda fields: int(fields["header"]["revision"]))
        self._remember(new, value)
        return new

    async def hold(self, ttl_s: float) -> str | None:
        """Take or renew L for `ttl_s`, in whole seconds, rounded up; None = somebody else has it."""
        if ttl_s < 1 or (self._lease_id and ttl_s != self._ttl_s):
            raise UsageError(f"a lease of {ttl_s:g} s: it has 1 s or more, and the same each time")
        until_s = self._until_s()
        if self._lease_id:
            if await self._renewed(until_s):
                return f"{self._lease_id:x}"
            # A call whose answer was lost may be about to write the key: with a lease that is gone it cannot.
            await self._revoke("hold", self._lease_id, until_s)
            self._lease_id = 0
        if (await self._read("hold", until_s)).holder:
            return None
        self._ttl_s = ttl_s
        body = {"TTL": str(math.ceil(ttl_s))}
        granted = await self._gateway.call("hold", "/v3/lease/grant", body, until_s, is_repeatable=True)
        lease_id = self._lease_id = granted.parsed("hold", lambda fields: int(fields["ID"]))
        if await self._create_lease_key(lease_id, until_s):
            return f"{lease_id:x}"
        await self._revoke("hold", lease_id, until_s)
        self._lease_id = 0
        return None

    async def release(self, acquisition: str) -> None:
        """Give up etcd's lease of this acquisition, and L with it if that is the one that it hangs on."""
        try:
            lease_id = int(acquisition, 16)
        except ValueError:
            raise UsageError(f"{acquisition!r} is no acquisition of a lease in etcd") from None
        await self._revoke("release", lease_id, self._until_s())
        if self._lease_id == lease_id:
            self._lease_id = 0

    async def changed(self, seen: ShardSnapshot, wait_s: float) -> ShardSnapshot:
        """Wait until version or holder are not those of `seen`, at most `wait_s`, and give what they are."""
        clock = asyncio.get_running_loop().time
        end_s = clock() + wait_s
        pause_s = _PAUSE_MIN_S
        while clock() < end_s:
            try:
                snapshot = await self._watched(seen, end_s)
            except CoordinatorError:
                if self._gateway.is_closed:
                    raise
                # One member, or a moment: otherwise the read at the end says it.
            else:
                if snapshot is not None:
                    return snapshot
            await asyncio.sleep(max(min(pause_s, end_s - clock()), 0))
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)
        return await self.read()

    async def close(self) -> None:
        """End connections; L stays until it expires."""
        await self._gateway.close()

    async def _watched(self, seen: ShardSnapshot, end_s: float) -> ShardSnapshot | None:
        """Watch both keys until something happens or `end_s`; a snapshot if it differs from `seen`."""
        create = {"key": _base64(self._folder), "range_end": _base64(_end_of(self._folder))}
        # Watching begins before the read: what comes after the read is seen.
        watch = await self._gateway.watch("changed", create, min(end_s, self._until_s()))
        try:
            snapshot = (await self._read("changed", self._until_s())).snapshot(self._folder)
            if (snapshot.version, snapshot.holder) == (seen.version, seen.holder):
                async with asyncio.timeout_at(end_s):
                    await watch.event()
                snapshot = (await self._read("changed", self._until_s())).snapshot(self._folder)
        except TimeoutError:
            return None
        finally:
            watch.close()
        differs = (snapshot.version, snapshot.holder) != (seen.version, seen.holder)
        return snapshot if differs else None

    async def _renewed(self, until_s: float) -> bool:
        """Renew the lease; False = it or its key is gone."""
        body = {"ID": str(self._lease_id)}
        for _ in range(_RENEWALS_MAX):
            kept = await self._gateway.call("hold", "/v3/lease/keepalive", body, until_s, is_repeatable=True)
            left_s, raft_term = kept.parsed(
                "hold", lambda fields: (int(fields.get("TTL", 0)), int(fields["header"]["raft_term"]))
            )
            if left_s <= 0:
                return False
            keys = await self._read("hold", until_s, kept.member)
            if keys.raft_term == raft_term:
                return keys.lease_id == self._lease_id
        raise CoordinatorError("etcd changes its leader", operation="hold")

    async def _create_lease_key(self, lease_id: int, until_s: float) -> bool:
        """Write L with this lease unless it is there; whether it is there with this lease."""
        put = {"key": self._lease_key, "value": _base64(self._replica_id), "lease": str(lease_id)}
        body = {
            "compare": [
                {"key": self._lease_key, "target": "CREATE", "result": "EQUAL", "create_revision": "0"}
            ],
            "success": [{"request_put": put}],
            "failure": [{"request_range": {"key": self._lease_key}}],
        }
        # Twice does no harm: the second time finds it with this lease, which is nobody else's.
        answer = await self._gateway.call("hold", "/v3/kv/txn", body, until_s, is_repeatable=True)
        if answer.fields.get("succeeded"):
            return True
        return answer.parsed(
            "hold",
            lambda fields: any(
                int(each.get("lease", 0)) == lease_id
                for each in fields["responses"][0]["response_range"].get("kvs", [])
            ),
        )

    async def _revoke(self, operation: str, lease_id: int, until_s: float) -> None:
        try:
            await self._gateway.call(
                operation, "/v3/lease/revoke", {"ID": str(lease_id)}, until_s, is_repeatable=True
            )
        except EtcdRefusalError as refusal:
            if not refusal.is_not_found:
                raise

    async def _read(self, operation: str, until_s: float, member: str = "") -> _Keys:
        body = {"key": _base64(self._folder), "range_end": _base64(_end_of(self._folder)), "limit": "16"}
        answer = await self._gateway.call(
            operation, "/v3/kv/range", body, until_s, is_repeatable=True, member=member
        )
        keys = answer.parsed(operation, self._keys_in)
        if keys.version:
            self._remember(keys.version, _base64(keys.value))
        return keys

    def _keys_in(self, fields: dict[str, Any]) -> _Keys:
        found = {each["key"]: each for each in fields.get("kvs", [])}
        state, lease = found.get(self._state_key, {}), found.get(self._lease_key, {})
        holder = base64.b64decode(lease.get("value", ""), validate=True).decode(errors="replace")
        return _Keys(
            value=base64.b64decode(state.get("value", ""), validate=True),
            version=int(state.get("mod_revision", 0)),
            holder=(holder or "?") if lease else "",
            lease_id=int(lease.get("lease", 0)),
            raft_term=int(fields["header"]["raft_term"]),
        )

    def _remember(self, version: int, value: str) -> None:
        self._values[version] = value
        while len(self._values) > VALUES_MAX:
            self._values.popitem(last=False)

    def _until_s(self) -> float:
        return asyncio.get_running_loop().time() + self._timeout_s


class _Keys(NamedTuple):
    """Both keys at one revision; `version` and `lease_id` 0 = the key is not there."""

    value: bytes
    version: int
    holder: str
    lease_id: int
    raft_term: int

    def snapshot(self, folder: str) -> ShardSnapshot:
        if not self.version:
            return ShardSnapshot(None, 0, self.holder)
        state = ShardState.decode(self.value, f"the state at {folder}state in etcd")
        return ShardSnapshot(state, self.version, self.holder)


def _base64(value: str | bytes) -> str:
    return base64.b64encode(value.encode() if isinstance(value, str) else value).decode()


def _end_of(folder: str) -> str:
    """The first key behind those that begin with `folder`, which ends with a slash: 0 is next to it."""
    return f"{folder[:-1]}0"
