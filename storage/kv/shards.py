"""The other shards below a prefix, and which of them have no owner. Every method blocks."""

from __future__ import annotations

from holdmq.config.kv import KvSection
from storage.kv.core.layout import ShardKeys
from storage.kv.server import ShardServer


class OtherShards:
    """Looks after the shards of other brokers."""

    def __init__(self, settings: KvSection, own: str) -> None:
        self._settings = settings
        self._own = own
        self._home = ShardServer(settings, ShardKeys(settings.prefix, own))
        self._servers: dict[str, ShardServer] = {}

    def ownerless(self) -> list[str]:
        """Names of shards whose owner's lease has run out, the longest ago first. Raises StorageError."""
        keys = ShardKeys(self._settings.prefix, self._own)
        names = {name.decode() for name in self._members(keys)} - {self._own}
        for name in set(self._servers) - names:
            self._servers.pop(name).close()
        found: list[tuple[int, str]] = []
        for name in names:
            of_shard = ShardKeys(self._settings.prefix, name)
            server = self._servers.get(name)
            if server is None:
                server = self._servers[name] = ShardServer(self._settings, of_shard)
            free_ms = int(server.run("free_for", [of_shard.state], self._settings.lease_ms))
            if free_ms >= 0:
                found.append((free_ms, name))
        return [name for _, name in sorted(found, reverse=True)]

    def _members(self, keys: ShardKeys) -> list[bytes]:
        # The set is of no shard's slot: its node may be another one.
        found: list[bytes] = self._home.keyed("SMEMBERS", keys.shards)
        return found

    def close(self) -> None:
        """Give the connections up."""
        self._home.close()
        for server in self._servers.values():
            server.close()
