"""A replica's process: its agent, its own port, and a broker while it leads."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import structlog

from broker.alerts.core.shard_copies import ShardCopies
from broker.alerts.leaderless import LeaderlessWatch
from broker.app.copy_reads import ReplicaReadServer, read_address
from broker.app.engine import StorageEngine
from broker.app.lives import Lives
from broker.app.replica_home import ReplicaHome
from broker.reading.core.far_reads import FarReads, ReadableCopy, ReadCounts, far_bytes_of
from broker.replication.agent import ReplicaAgent, boot_time, refusal_of
from broker.replication.core.leading import Leading
from broker.replication.core.messages import Refused
from broker.replication.core.replica import Replica, ReplicaRole
from broker.replication.core.settings import ReplicaSettings
from broker.replication.peers import Peers
from broker.replication.requests import ReplicaRequests
from broker.topics.core.table import TopicTable
from holdmq.config.model import Config
from holdmq.coordination.configured import coordinator_of
from holdmq.coordination.counted import CountedCoordinator
from holdmq.errors import ConfigError, HoldMQError, RemoteError
from holdmq.rpc.auth import ServerSecurity
from holdmq.rpc.connection import OUTSTANDING_MAX_BYTES
from holdmq.rpc.security import Security
from holdmq.rpc.server import Server
from holdmq.service.memory import memory_limit
from holdmq.service.process import Service
from holdmq.wire.frame import FRAME_OVERHEAD_BYTES

HEADER_MAX_BYTES: Final = 4 << 20
"""A hello's answer may name every queue of a large broker."""

log = structlog.get_logger("holdmq.replication")


class ReplicaProcess:
    """Lives as one replica of a broker, by `[replication]` and `[coordination]`."""

    def __init__(self, config: Config, service: Service, lives: Lives, security: ServerSecurity) -> None:
        settings = config.replication
        if not settings.replica:
            raise ConfigError(
                "replication.replicas names copies, and replication.replica does not say which one this is"
            )
        if config.storage.engine != "log":
            raise ConfigError(
                f"replication is of the log engine, and storage.engine is {config.storage.engine!r}, whose "
                "servers have copies of their own; empty replication.replicas"
            )
        coordinator = coordinator_of(config, settings.replica)
        if coordinator is None:
            raise ConfigError(
                "replication.replicas names copies: coordination.kind must say who decides which one leads"
            )
        self._config = config
        self._service = service
        self._lives = lives
        self._coordinator = CountedCoordinator(coordinator, boot_time)
        self._life: asyncio.Task[None] | None = None
        self._ending = asyncio.Event()
        self._failure: HoldMQError | None = None
        self._stopping = asyncio.Event()
        times = settings_of(config)
        addresses = settings.addresses()
        peers = Peers(
            config.broker.name,
            settings.replica,
            addresses,
            times.timeout_s,
            times.hold_s,
            Security.of(config),
        )
        self._reads = ReadCounts()
        self._far_bytes = far_bytes_of(
            settings.far_reads_bytes, memory_limit(config.storage.memory_limit_bytes)
        )
        self._clients = ReplicaReadServer(config, security, self, self._reads, self._far_bytes)
        self.home = ReplicaHome(config, self._owned_for_s, self._clients)
        self.agent = ReplicaAgent(
            times,
            settings.replica,
            tuple(addresses),
            self.home,
            self._coordinator,
            peers,
            self,
            settings.fetch_max_bytes,
            settings.catch_up_bytes_per_s,
            read_address(config),
        )
        self.requests = ReplicaRequests(config.cluster.name, config.broker.name, self.agent)
        self._leaderless = LeaderlessWatch(
            config.alarms, config.broker.name, settings.replica, self._is_leaderless
        )
        self._rpc = Server(
            dict(self.requests.routes()),
            self.requests.hello,
            HEADER_MAX_BYTES + FRAME_OVERHEAD_BYTES,
            outstanding_max_bytes=OUTSTANDING_MAX_BYTES,
            security=security,
        )

    def reconfigure(self, config: Config) -> None:
        """Take other times of the alarm that nobody leads."""
        self._leaderless.reconfigure(config.alarms)

    async def live(self) -> None:
        """Replicate until the process is to stop. Raises HoldMQError."""
        settings = self._config.replication
        stopping = asyncio.get_running_loop().create_task(self._service.stopping.wait(), name="stopping")
        stopping.add_done_callback(lambda _: self._stopping.set())
        try:
            await self._rpc.listen(settings.bind, settings.port)
            self._service.ready(self._state)
            self._service.log.info(
                "replica lives", name=self._config.broker.name, replica=settings.replica, port=self._rpc.port
            )
            self._leaderless.start()
            await self.agent.run(self._stopping)
        finally:
            stopping.cancel()
            self._leaderless.stop()
            self._service.no_longer_ready(self._state)
            await self._rpc.close()
            await self._coordinator.close()
            await asyncio.get_running_loop().run_in_executor(None, self._leaderless.close)
        if self._failure is not None:
            raise self._failure

    def _owned_for_s(self) -> float:
        return self.agent.owned_for_s()

    def _state(self) -> tuple[bool, str]:
        """Readiness: it leads and serves, or it is in sync, so that another replica may be stopped."""
        core = self.agent.core
        if core is None:
            return False, "its log is being opened"
        if core.role is ReplicaRole.LEADING and core.leading is not None and core.leading.is_serving:
            return self._leading_state(core, core.leading)
        if core.role is ReplicaRole.COPYING and core.log.is_whole:
            if core.state is not None and self.agent.replica in core.state.in_sync:
                return True, f"it has what {core.leader} has"
            return False, f"it catches up with {core.leader}"
        if core.outdated:
            return False, core.outdated
        return False, f"it is {core.role.value}"

    def _leading_state(self, core: Replica, leading: Leading) -> tuple[bool, str]:
        """Readiness of a leader: a client that comes to it is served."""
        if not self._lives.serving:
            return False, "it leads, and opens"
        now = boot_time()
        if not core.lease.is_valid(now):
            return False, (
                "it leads, and hands nothing out: its lease of the lead has run out; look after the "
                "coordinator"
            )
        wanted, found = self._config.replication.min_in_sync, len(leading.followers(now))
        if found < wanted:
            return False, (
                f"it leads, and acknowledges nothing: {found} of the {wanted} replicas that "
                "replication.min_in_sync wants have what it has; holdmq replica list says which are missing"
            )
        return True, "it leads"

    def _is_leaderless(self) -> bool:
        core = self.agent.core
        return core is not None and core.is_leaderless(boot_time())

    # broker.alerts.core.shard_copies.KnowsCopies

    def copies(self) -> ShardCopies | None:
        core = self.agent.core
        leading = None if core is None else core.leading
        if leading is None or not leading.is_serving:
            return None
        now = boot_time()
        return ShardCopies(
            self._config.broker.name,
            tuple(self._config.replication.addresses()),
            frozenset(leading.followers(now)),
            {copy.peer: max(0.0, now - copy.level_at) for copy in leading.copies.values()},
        )

    @property
    def replica(self) -> str:
        return self.agent.replica

    @property
    def addresses(self) -> Mapping[str, str]:
        return self._config.replication.addresses()

    def numbers(self) -> Mapping[str, int | float]:
        """Gauges and counters of replication; read on any thread."""
        reads = self._reads
        return self.agent.numbers() | {
            "reads_redirected_total": reads.redirected,
            "reads_served_total": reads.served,
            "reads_sent_back_total": reads.sent_back,
        }

    def broker_numbers(self) -> Mapping[str, int | float]:
        """Gauges and counters of the broker here, or of what a copy is read for; on any thread."""
        return self._lives.broker_numbers() or self._clients.numbers()

    def store_numbers(self) -> Mapping[str, int | float]:
        """Gauges and counters of the log while it is open, whoever leads; on any thread."""
        engine = self.home.engine
        return {} if engine is None else engine.store.numbers()

    # broker.app.copy_reads.CopyStanding

    def may_read(self) -> bool:
        core = self.agent.core
        return core is not None and core.may_read(boot_time())

    def not_leading(self) -> RemoteError:
        core = self.agent.core
        return refusal_of(Refused(0, "") if core is None else core.refusal())

    def coordination_numbers(self) -> Mapping[str, int | float]:
        """Gauges and counters of calls to the coordinator; read on any thread."""
        return self._coordinator.numbers()

    # broker.replication.ports.LeadEvents

    def serve(self, epoch: int) -> None:
        engine, table = self.home.engine, self.home.table
        if engine is None or table is None or self._life is not None:
            return
        self.home.take()
        self._ending = asyncio.Event()
        life = self._lead(engine, table, epoch)
        self._life = asyncio.get_running_loop().create_task(life, name=f"lead in epoch {epoch}")
        self._life.add_done_callback(self._lived)

    async def _lead(self, engine: StorageEngine, table: TopicTable, epoch: int) -> None:
        await self._clients.end()  # the port is the broker's now
        store = engine.store
        far_reads = FarReads(self._readable, lambda: store.confirmed_position, self._far_bytes, self._reads)
        await self._lives.lead(self._config, engine, table, epoch, self._ending, self, far_reads)

    def _readable(self) -> list[ReadableCopy]:
        core = self.agent.core
        if core is None or core.leading is None:
            return []
        copies = core.leading.readable(boot_time())
        return [ReadableCopy(copy.read_address, copy.acknowledged) for copy in copies]

    async def settle(self) -> None:
        await self._lives.settle()

    def cease(self, reason: str) -> None:
        self._ending.set()

    def _lived(self, life: asyncio.Task[None]) -> None:
        self._life = None
        self.home.leave()
        if life.cancelled():
            return
        error = life.exception()
        if error is None:
            return
        if not isinstance(error, HoldMQError):
            log.error("the broker of this replica failed", exc_info=error)
        else:
            log.error("the broker of this replica cannot serve", reason=str(error))
        if not self._ending.is_set():
            self._failure = error if isinstance(error, HoldMQError) else HoldMQError(str(error))
            self._stopping.set()


def settings_of(config: Config) -> ReplicaSettings:
    """The times of replication that a configuration says."""
    replication, coordination = config.replication, config.coordination
    return ReplicaSettings(
        replication.min_in_sync,
        ttl_s=float(coordination.ttl_s),
        renew_s=coordination.renew_s,
        margin_s=coordination.margin_s,
        lag_s=replication.lag_ms / 1e3,
        hold_s=replication.hold_ms / 1e3,
        timeout_s=coordination.timeout_s,
        switch_s=replication.switch_ms / 1e3,
    )
