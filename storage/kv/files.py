"""State files of the broker's rooms, kept in the shard: a disk whose files are values of one hash.

Only what `holdmq.files.atomic_file` does with small files: write one whole, rename it over, read it. Every
change compares the term, so a broker that lost the shard changes nothing any more.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from holdmq.errors import ShardLostError, StorageError, StoreFullError
from holdmq.files.disk import Buffer, OpenFile, Space
from storage.kv.core.layout import ShardKeys
from storage.kv.server import ShardServer


class ShardFile:
    """One file; what is written goes to the shard at `sync` or `close`."""

    def __init__(self, disk: ShardDisk, name: str, content: bytes | None) -> None:
        self._disk = disk
        self._name = name
        self._content = bytearray(content or b"")
        self._is_new = content is None

    def write(self, buffers: Sequence[Buffer], offset: int) -> None:
        data = b"".join(buffers)
        if len(self._content) < offset:
            self._content.extend(bytes(offset - len(self._content)))
        self._content[offset : offset + len(data)] = data
        self._is_new = True

    def read(self, offset: int, size: int) -> bytes:
        return bytes(self._content[offset : offset + size])

    def read_ahead(self, offset: int, size: int) -> None:
        """All of it is in memory."""

    def sync(self) -> None:
        if self._is_new:
            self._disk.change("HSET", self._name, bytes(self._content))
            self._is_new = False

    def truncate(self, size: int) -> None:
        self._content = self._content[:size].ljust(size, b"\0")
        self._is_new = True

    def preallocate(self, size: int) -> None:
        """Memory is taken as it is needed."""

    def size(self) -> int:
        return len(self._content)

    def data_ranges(self, offset: int) -> list[tuple[int, int]]:
        return [(offset, len(self._content))] if offset < len(self._content) else []

    def try_lock(self) -> bool:
        """The shard's term is the lock."""
        return True

    def close(self) -> None:
        self.sync()


class ShardDisk:
    """`holdmq.files.disk.Disk` in a shard; paths are names below the data directory."""

    def __init__(self, server: ShardServer, keys: ShardKeys, root: Path, term: Callable[[], bytes]) -> None:
        self._server = server
        self._keys = keys
        self._root = root
        self._term = term

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self._root)) if path.is_relative_to(self._root) else str(path)

    def change(self, word: str, *args: Any) -> None:
        """Change the hash of files in this term; OSError when that cannot be."""
        self._run([word, self._keys.files, *args])

    def _run(self, *commands: list[Any]) -> None:
        words: list[Any] = []
        for command in commands:
            words += (len(command), *command)
        try:
            self._server.run("change", [self._keys.state, self._keys.files], self._term(), *words)
        except StoreFullError as error:
            raise OSError(errno.ENOSPC, str(error), self._keys.files) from error
        except (StorageError, ShardLostError) as error:
            raise OSError(errno.EIO, str(error), self._keys.files) from error

    def _content(self, path: Path) -> bytes | None:
        try:
            found: bytes | None = self._server.command("HGET", self._keys.files, self._name(path))
        except StorageError as error:
            raise OSError(errno.EIO, str(error), str(path)) from error
        return found

    def open(self, path: Path, create: bool = False) -> OpenFile:
        content = self._content(path)
        if content is None and not create:
            raise FileNotFoundError(errno.ENOENT, "no such state in the shard", str(path))
        return ShardFile(self, self._name(path), content)

    def create_anew(self, path: Path) -> OpenFile:
        return ShardFile(self, self._name(path), None)

    def open_to_read(self, path: Path) -> OpenFile:
        return self.open(path)

    def list(self, directory: Path) -> list[str]:
        try:
            names = [name.decode() for name in self._server.command("HKEYS", self._keys.files)]
        except StorageError as error:
            raise OSError(errno.EIO, str(error), str(directory)) from error
        prefix = self._name(directory) + "/"
        return [name.removeprefix(prefix) for name in names if name.startswith(prefix)]

    def make_directory(self, directory: Path, durable: bool = True) -> None:
        """Names need no directory."""

    def rename(self, source: Path, target: Path) -> None:
        content = self._content(source)
        if content is None:
            raise FileNotFoundError(errno.ENOENT, "no such state in the shard", str(source))
        files = self._keys.files
        self._run(["HSET", files, self._name(target), content], ["HDEL", files, self._name(source)])

    def unlink(self, path: Path) -> None:
        self.change("HDEL", self._name(path))

    def sync_directory(self, directory: Path) -> None:
        """Every change is made when its call returns."""

    def sync_all(self, directory: Path) -> None:
        """Every change is made when its call returns."""

    def space(self, directory: Path) -> Space:
        """As much as one asks for: a full server refuses by itself."""
        return Space(1 << 50, 1 << 50)
