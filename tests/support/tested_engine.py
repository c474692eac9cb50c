"""Which storage engine the brokers of a test run have (`pytest --engine`), and where the key-value one keeps.

Of the key-value engine each process that runs tests has one Valkey, kept in memory alone. What is below one
directory has a prefix of its own there, so that a restart over the same directory finds the same data.
"""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import Any, Final

import state_in_log
from valkey_servers import ValkeyServer

from holdmq.record.codec import Record, decode_record
from storage.kv.core.layout import ShardKeys

ENGINES: Final = ("log", "kv")

_running: list[tuple[ValkeyServer, tempfile.TemporaryDirectory[str]]] = []


def begin() -> None:
    """Start the server: brokers have the key-value engine from now on."""
    assert not _running
    directory = tempfile.TemporaryDirectory(prefix="holdmq-valkey-")
    server = ValkeyServer(Path(directory.name))
    server.start()
    _running.append((server, directory))


def end() -> None:
    """End the server, if there is one: brokers have the log engine again."""
    while _running:
        server, directory = _running.pop()
        server.end()
        directory.cleanup()


def is_kv() -> bool:
    """Whether brokers have the key-value engine."""
    return bool(_running)


def server() -> ValkeyServer:
    """The server; there must be one."""
    return _running[-1][0]


def forget() -> None:
    """Drop all that the server has: whoever keeps something in it has ended."""
    if _running:
        server().command("FLUSHALL")


def prefix_of(directory: Path) -> str:
    """The beginning of all keys of what is kept below a directory."""
    return f"t{hashlib.sha256(str(directory).encode()).hexdigest()[:20]}"


def kv_section(directory: Path) -> dict[str, Any]:
    """The section `storage.kv` of a broker over a directory."""
    return {"url": server().url, "prefix": prefix_of(directory)}


def storage_settings(directory: Path) -> dict[str, Any]:
    """`storage.*` settings of a process over a directory: none on the log engine, as it is the default."""
    if not is_kv():
        return {}
    return {"storage.engine": "kv"} | {
        f"storage.kv.{name}": value for name, value in kv_section(directory).items()
    }


def own_server_flags() -> list[str]:
    """Flags of `holdmq up`, which brings a server of its own."""
    return ["--set=storage.engine=kv"] if is_kv() else []


def state_file(directory: Path, name: str) -> bytes:
    """A state file of the broker `broker-0` over a directory, as it is stored. FileNotFoundError."""
    logged = state_in_log.files_of(directory / "store")
    if logged is not None:
        content = logged.content(f"config/{name}")
        if content is None:
            raise FileNotFoundError(name)
        return content
    if not is_kv():
        return (directory / "store" / "config" / name).read_bytes()
    files = ShardKeys(prefix_of(directory), "broker-0").files
    with server().client() as client:
        found = client.hget(files, f"config/{name}")
    if found is None:
        raise FileNotFoundError(name)
    return str(found).encode()


def shard_records(directory: Path) -> list[Record]:
    """All records of the log of the broker `broker-0` over a directory, in their order."""
    log = ShardKeys(prefix_of(directory), "broker-0").log
    found: list[Record] = []
    with server().client() as client:
        client.connection_pool.connection_kwargs["decode_responses"] = False
        for _, fields in client.xrange(log):
            batch, at = fields[b"r"], 0
            while at < len(batch):
                found.append(decode_record(batch, at))
                at += found[-1].total_size
    return found


class SavedKeys:
    """All keys of what is kept below a directory, as they were at one moment."""

    def __init__(self, directory: Path) -> None:
        self._pattern = f"*{prefix_of(directory)}:*"
        with server().client() as client:
            client.connection_pool.connection_kwargs["decode_responses"] = False
            self._keys = {key: client.dump(key) for key in client.scan_iter(self._pattern, count=1000)}

    def restore(self) -> None:
        """Put them back, and nothing else; the server is then one that was started anew."""
        with server().client() as client:
            client.connection_pool.connection_kwargs["decode_responses"] = False
            for key in list(client.scan_iter(self._pattern, count=1000)):
                client.delete(key)
            for key, content in self._keys.items():
                client.restore(key, 0, content)
                if key.endswith(b":s"):
                    client.hset(key, "run_id", "another")
