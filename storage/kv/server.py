"""The server of a shard: which node it is, functions run there, and what its errors mean.

A client per node with a pool of connections (redis-py); every method blocks and may be called on any
thread. In a cluster all keys of a shard are in one slot: a pipeline goes to the slot's node as a whole.
When the slot has moved, the node is looked up again and the rest is sent there; nothing here sends a
command twice whose outcome is unknown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from threading import Lock
from time import monotonic, sleep
from typing import Any, Final, NamedTuple, TypeVar

import redis
import structlog
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as Disconnected
from redis.exceptions import TimeoutError as NoAnswer
from redis.retry import Retry

from holdmq.config.kv import KvSection, KvServers
from holdmq.errors import ShardLostError, StorageError, StoreFullError
from storage.kv.core.functions import LIBRARY, VERSION
from storage.kv.core.layout import ShardKeys
from storage.kv.core.resp import pieces_of

RETRY_S: Final = 0.02
"""Pause before a command is tried again that a moving slot or an election held up."""
RETRY_MAX_S: Final = 0.5
MOVING: Final = (
    MovedError,
    AskError,
    TryAgainError,
    ReadOnlyError,
    ClusterDownError,
    MasterDownError,
    BusyLoadingError,
)
"""Nothing was done: the slot is moving, or its new master is not ready."""
UNKNOWN: Final = (Disconnected, NoAnswer)
"""The command may have been run."""

log = structlog.get_logger("holdmq.storage")
T = TypeVar("T")


class FunctionCall(NamedTuple):
    """A function of the library, its keys, and its arguments."""

    function: str
    keys: Sequence[str]
    args: Sequence[Any]

    def words(self) -> list[Any]:
        """The command that runs it."""
        return ["FCALL", f"{VERSION}_{self.function}", len(self.keys), *self.keys, *self.args]


class CallLine:
    """One connection, on which calls may be sent before those ahead of them are answered.

    The node runs them in order. After a RedisError the line is of no more use than to be closed.
    """

    def __init__(self, pool: Any, connection: Any) -> None:
        self._pool = pool
        self._connection = connection
        self._sent: deque[int] = deque()

    def send(self, calls: Sequence[FunctionCall], wait: tuple[int, int] | None = None) -> None:
        """Send calls, and a WAIT (replicas, ms) behind them, as `ShardServer.pipeline`. Raises RedisError."""
        words = [call.words() for call in calls]
        if wait is not None:
            words.append(["WAIT", *wait])
        # Not redis-py's way, which copies all of it twice: a quarter of a broker's CPU.
        self._connection.send_packed_command(pieces_of(words))
        self._sent.append(len(words))

    def receive(self) -> list[Any]:
        """The answers, or exceptions, of the oldest calls that have none yet. Raises RedisError."""
        answers: list[Any] = []
        for _ in range(self._sent[0]):
            try:
                answers.append(self._connection.read_response())
            except ResponseError as error:
                answers.append(error)
        self._sent.popleft()
        return answers

    def close(self) -> None:
        """Give the connection back; it ends when answers are still to come."""
        if self._sent:
            self._connection.disconnect()
        self._pool.release(self._connection)


class ShardServer:
    """The node that has a shard's slot. `where` names it for people; no password is in it."""

    def __init__(self, settings: KvSection, keys: ShardKeys) -> None:
        servers = settings.servers()
        self.where = servers.where
        self.redirects = self.retries = 0
        self._keys = keys
        self._timeout_s = settings.timeout_ms / 1e3
        self._seeds = servers.hosts
        self._options = _options(servers, settings)
        self._gate = Lock()
        self._cluster: Any = None  # redis-py has types for some of its calls only
        self._node: Any = None

    # Connecting

    def open(self) -> None:
        """Find the shard's node and give it the functions. Raises StorageError."""
        self.attempt(self._load)

    def close(self) -> None:
        """Give the connections up."""
        with self._gate:
            node, cluster = self._node, self._cluster
            self._node = self._cluster = None
        if node is not None:
            node.close()
        if cluster is not None:
            cluster.close()

    def _load(self) -> None:
        _give_functions(self.node())

    def node(self) -> Any:
        """The client of the shard's node, connected when it is first asked for. Raises RedisError."""
        node = self._node
        if node is None:
            with self._gate:
                node = self._node
                if node is None:
                    node = self._node = self._find()
        return node

    def look_up(self) -> None:
        """Find the shard's node anew when it is next asked for."""
        # Other threads may be using the old connections, which end with the last of them.
        with self._gate:
            self._node = self._cluster = None

    def _find(self) -> Any:
        problem: RedisError | None = None
        for host, port in self._seeds:
            seed = redis.Redis(host=host, port=port, **self._options)
            try:
                if seed.info("cluster").get("cluster_enabled"):
                    seed.close()
                    return self._of_cluster()
                if seed.info("replication").get("role") == "master":
                    return seed
                problem = Disconnected(f"{host}:{port} is a replica")
            except RedisError as error:
                problem = error
            seed.close()
        assert problem is not None
        raise problem

    def _of_cluster(self) -> Any:
        make: Any = ClusterNode
        seeds = [make(host, port) for host, port in self._seeds]
        self._cluster = RedisCluster(startup_nodes=seeds, require_full_coverage=False, **self._options)
        node = self._cluster.get_node_from_key(self._keys.tag)
        if node is None:
            raise ClusterDownError("no node has the shard's slot")
        return self._cluster.get_redis_connection(node)

    # Calling

    def run(self, function: str, keys: Sequence[str], *args: Any) -> Any:
        """Run a function that may be run twice, for as long as `timeout_ms` allows. Raises StorageError."""
        words = FunctionCall(function, keys, args).words()
        return self.attempt(lambda: self._once(words))

    def command(self, *words: Any) -> Any:
        """Run a command that may be run twice. Raises StorageError."""
        return self.attempt(lambda: self._once(list(words)))

    def keyed(self, *words: Any) -> Any:
        """Run a command, which may be run twice, at the node that has its own key. Raises StorageError."""

        def once() -> Any:
            node = self.node()
            return (self._cluster or node).execute_command(*words)

        return self.attempt(once)

    def _once(self, words: list[Any]) -> Any:
        try:
            return self.node().execute_command(*words)
        except AskError as error:
            return self._asking(error, words)
        except ResponseError as error:
            if "Function not found" not in str(error):
                raise
            self._load()
            return self.node().execute_command(*words)

    def _asking(self, error: AskError, words: list[Any]) -> Any:
        with redis.Redis(host=error.host, port=error.port, **self._options) as node:
            answer = _asked(node, words)
            if isinstance(answer, ResponseError) and "Function not found" in str(answer):
                _give_functions(node)
                answer = _asked(node, words)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def attempt(self, work: Any) -> Any:
        """Do what may be done twice until it is done, at most `timeout_ms` long. Raises StorageError."""
        until = monotonic() + self._timeout_s
        pause_s = RETRY_S
        while True:
            try:
                return work()
            except (*MOVING, *UNKNOWN, RedisClusterException) as error:
                if (
                    isinstance(error, (AuthenticationError, OutOfMemoryError))
                    or monotonic() + pause_s > until
                ):
                    raise self.failure(error) from error
                self.retries += 1
                if not isinstance(error, (AskError, TryAgainError)):
                    self.redirects += 1
                    self.look_up()
                sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_MAX_S)
            except RedisError as error:
                raise self.failure(error) from error

    def pipeline(self, calls: Sequence[FunctionCall], wait: tuple[int, int] | None = None) -> list[Any]:
        """Send calls as one pipeline; an answer or exception for each, in order. Raises RedisError.

        With `wait` (replicas, ms) the last answer is how many replicas have all of it.
        """
        pipeline = self.node().pipeline(transaction=False)
        for call in calls:
            pipeline.execute_command(*call.words())
        if wait is not None:
            pipeline.execute_command("WAIT", *wait)
        answers: list[Any] = pipeline.execute(raise_on_error=False)
        return answers

    def line(self) -> CallLine:
        """A connection to the shard's node, its caller's until it is closed. Raises RedisError."""
        pool = self.node().connection_pool
        return CallLine(pool, pool.get_connection())

    def ask(self, error: AskError, call: FunctionCall) -> Any:
        """Run a call at the node that a moving slot goes to. Raises RedisError."""
        return self._asking(error, call.words())

    def load_functions(self) -> None:
        """Give the node the functions that it says it has not. Raises StorageError."""
        self.attempt(self._load)

    def await_replicas(self, touch: FunctionCall, timeout_ms: int) -> None:
        """Wait until all replicas of the node know what was written so far; the log says if they do not.

        Raises StorageError.
        """
        replicas = int(self.attempt(lambda: self.node().info("replication")["connected_slaves"]))
        if not replicas:
            return
        copies = self.attempt(lambda: self.pipeline([touch], (replicas, timeout_ms)))[-1]
        if isinstance(copies, Exception) or copies < replicas:
            log.warning(
                "replicas do not follow: a failover now forgets who owns the shard", server=self.where
            )

    def run_id(self) -> str:
        """What changes when another node, or the same one started anew, has the shard. Raises
        StorageError.
        """
        return str(self.attempt(lambda: self.node().info("server")["run_id"]))

    def failure(self, error: Exception, operation: str = "use") -> StorageError:
        """What an error means for the store."""
        text = str(error)
        if text.startswith("FENCED"):
            return ShardLostError(
                text.removeprefix("FENCED "),
                operation=operation,
                path=self._keys.tag,
                hint="another broker took the shard over",
            )
        if isinstance(error, OutOfMemoryError) or text.startswith("OOM"):
            return StoreFullError(
                text,
                operation=operation,
                path=self.where,
                hint="raise maxmemory or shorten storage.retention_age_s; service resumes by itself",
            )
        if isinstance(error, AuthenticationError):
            return StorageError(
                text, operation=operation, path=self.where, hint="check user and password in storage.kv.url"
            )
        return StorageError(
            text or type(error).__name__,
            operation=operation,
            path=self.where,
            hint="is the key-value server up and reachable? storage.kv.url names it",
        )


def _give_functions(node: Any) -> None:
    """Load the library, unless the node has it: a full one takes none, and is still to be read from."""
    loaded = node.execute_command("FUNCTION", "LIST", "LIBRARYNAME", VERSION, "WITHCODE")
    if not _has(loaded, LIBRARY.encode()):
        node.execute_command("FUNCTION", "LOAD", "REPLACE", LIBRARY)


def _has(answer: Any, text: bytes) -> bool:
    """Whether a text is anywhere in an answer: lists in lists, or dictionaries since RESP 3."""
    if isinstance(answer, dict):
        return any(_has(each, text) for each in answer.values())
    return any(_has(each, text) for each in answer) if isinstance(answer, list) else bool(answer == text)


def _asked(node: Any, words: list[Any]) -> Any:
    """The answer, or the exception, of the node that a moving slot goes to."""
    pipeline = node.pipeline(transaction=False)
    pipeline.execute_command("ASKING")
    pipeline.execute_command(*words)
    return pipeline.execute(raise_on_error=False)[1]


def _options(servers: KvServers, settings: KvSection) -> dict[str, Any]:
    timeout_s = settings.timeout_ms / 1e3
    options: dict[str, Any] = {
        "username": servers.user or None,
        "password": servers.password or None,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": min(timeout_s, 2.0),
        "socket_keepalive": True,
        "retry": Retry(NoBackoff(), 0),
        "client_name": "holdmq",
    }
    if servers.tls:
        options["ssl"] = True
        if settings.ca_file:
            options["ssl_ca_certs"] = settings.ca_file
    return options
