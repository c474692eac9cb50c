"""A disk in memory that forgets, tears and fails like a real one, the same way for the same seed.

Every file has what reads see and what is certainly on the platter; between them lie the changes
since the last fsync. `SimDisk.after_power_loss` makes the disk that a power loss leaves: any
subset of those changes, torn at sectors and at bytes, older ones lost and newer ones kept. Names
(create, rename, unlink) need the fsync of their directory; a file's size and blocks need its own.

Each change and each fsync is a numbered point: `at_point` is called before it happens, so that a
run can be cut, or looked at, at every one of them.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from random import Random
from threading import RLock
from typing import Final, NamedTuple

from holdmq.files.disk import Buffer, OpenFile, Space

SECTOR: Final = 512
"""What a disk writes at once or, when the power goes in that moment, only in part."""


class PowerLoss(BaseException):
    """The machine is off. Like KeyboardInterrupt it is nobody's to handle."""


class Change(NamedTuple):
    """One change of a file: bytes at an offset, or (`data` is None) its new size."""

    serial: int
    offset: int
    data: bytes | None


class Naming(NamedTuple):
    """One change of a directory: `put` names appear, `gone` disappear, both or neither."""

    serial: int
    gone: tuple[str, ...]
    put: tuple[tuple[str, Inode | Directory], ...]


class Inode:
    """A file without its name."""

    __slots__ = ("allocated", "changes", "data", "durable", "lock")

    def __init__(self, content: bytes | bytearray = b"") -> None:
        self.data = bytearray(content)
        self.durable = bytearray(content)
        self.changes: list[Change] = []
        self.allocated = len(content)
        self.lock: object | None = None

    def sync(self) -> None:
        for change in self.changes:
            apply(self.durable, change)
        self.changes.clear()


class Directory:
    """Names, as they are and as they certainly are on disk."""

    __slots__ = ("changes", "durable", "names")

    def __init__(self) -> None:
        self.names: dict[str, Inode | Directory] = {}
        self.durable: dict[str, Inode | Directory] = {}
        self.changes: list[Naming] = []

    def sync(self) -> None:
        self.durable = dict(self.names)
        self.changes.clear()


def apply(content: bytearray, change: Change) -> None:
    """Make a change in full."""
    if change.data is None:
        resize(content, change.offset)
        return
    end = change.offset + len(change.data)
    if end > len(content):
        resize(content, end)
    content[change.offset : end] = change.data


def resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


class Loss:
    """What a power loss takes of the changes that no fsync covers: one seeded decision each.

    Kinds: nothing is kept; everything is; all up to one moment, the last write torn at a byte;
    or each sector and each name by itself.
    """

    KINDS: Final = ("nothing", "everything", "prefix", "sectors", "sectors", "sectors")

    def __init__(self, seed: int, serial: int) -> None:
        self.chance = Random(seed)
        self.kind = self.chance.choice(self.KINDS)
        self.kept_part = self.chance.choice((0.1, 0.5, 0.9))
        self.moment = self.chance.randrange(max(0, serial - 30), serial + 1)

    def content(self, inode: Inode) -> bytearray:
        content = bytearray(inode.durable)
        if self.kind == "everything":
            for change in inode.changes:
                apply(content, change)
        elif self.kind == "prefix":
            for change in inode.changes:
                if change.serial < self.moment:
                    apply(content, change)
                elif change.serial == self.moment and change.data is not None:
                    torn = change.data[: self.chance.randrange(len(change.data) + 1)]
                    apply(content, change._replace(data=torn))
        elif self.kind == "sectors":
            self._keep_sectors(content, inode.changes)
        return content

    def _keep_sectors(self, content: bytearray, changes: list[Change]) -> None:
        # A file's sizes are journalled in their order; its data reaches the disk in any.
        sizes_kept = self.chance.randrange(len(changes) + 1)
        for index, change in enumerate(changes):
            if change.data is None:
                if index < sizes_kept:
                    resize(content, change.offset)
                continue
            end = change.offset + len(change.data)
            if end > len(content) and index < sizes_kept:
                resize(content, end)
            at = change.offset
            while at < end:
                stop = min(end, (at // SECTOR + 1) * SECTOR)
                self._keep_sector(content, at, change.data[at - change.offset : stop - change.offset])
                at = stop

    def _keep_sector(self, content: bytearray, at: int, data: bytes) -> None:
        if self.chance.random() >= self.kept_part:
            return
        if self.chance.random() < 0.1:
            torn = self.chance.randrange(len(data) + 1)
            if self.chance.random() < 0.5:
                data = data[:torn]
            else:
                at, data = at + torn, data[torn:]
        stop = min(at + len(data), len(content))
        if stop > at:
            content[at:stop] = data[: stop - at]

    def names(self, directory: Directory) -> dict[str, Inode | Directory]:
        if self.kind == "everything":
            return directory.names
        names = dict(directory.durable)
        if self.kind == "nothing":
            return names
        in_order = self.kind == "prefix" or self.chance.random() < 0.5
        moment = (
            self.moment
            if self.kind == "prefix"
            else self.chance.choice([-1, *map(_serial, directory.changes)])
        )
        for naming in directory.changes:
            kept = naming.serial <= moment if in_order else self.chance.random() < self.kept_part
            if kept:
                for name in naming.gone:
                    names.pop(name, None)
                names.update(naming.put)
        return names


def _serial(naming: Naming) -> int:
    return naming.serial


class SimFile:
    """An open file of a `SimDisk`."""

    def __init__(self, disk: SimDisk, inode: Inode, path: Path, is_writable: bool) -> None:
        self._disk, self.inode, self._path = disk, inode, path
        self._is_writable = is_writable
        self._is_open = True

    def write(self, buffers: Sequence[Buffer], offset: int) -> None:
        self._check(writes=True)
        data = b"".join(buffers)
        try:
            lock = self._disk.at("write", self._path)
        except OSError:
            # A write fails in the middle: what went before is in the file.
            if part := data[: self._disk.part_of(len(data))]:
                self._disk.change(self.inode, offset, part)
            raise
        with lock:
            fitting = self._disk.grow(self.inode, offset + len(data))
            if data[: max(0, fitting - offset)]:
                self._disk.change(self.inode, offset, data[: fitting - offset])
            if fitting < offset + len(data):
                raise _error(errno.ENOSPC, self._path)

    def read(self, offset: int, size: int) -> bytearray:
        self._check()
        with self._disk.at("read", self._path, is_point=False):
            return self.inode.data[offset : offset + size]

    def sync(self) -> None:
        self._check(writes=True)
        try:
            with self._disk.at("sync", self._path):
                self.inode.sync()
        except OSError:
            # As Linux does: the pages count as clean from now on, and the next fsync succeeds.
            self.inode.changes = [change for change in self.inode.changes if change.data is None]
            raise

    def truncate(self, size: int) -> None:
        self._check(writes=True)
        with self._disk.at("truncate", self._path):
            if size != len(self.inode.data):
                self._disk.change(self.inode, size, None)
            self._disk.shrink(self.inode, size)

    def preallocate(self, size: int) -> None:
        self._check(writes=True)
        with self._disk.at("preallocate", self._path):
            fitting = self._disk.grow(self.inode, size)
            if fitting > len(self.inode.data):
                self._disk.change(self.inode, fitting, None)
            if fitting < size:
                raise _error(errno.ENOSPC, self._path)

    def size(self) -> int:
        self._check()
        return len(self.inode.data)

    def read_ahead(self, offset: int, size: int) -> None:
        self._check()

    def data_ranges(self, offset: int) -> list[tuple[int, int]]:
        self._check()
        end = len(self.inode.data.rstrip(b"\0"))
        return [(offset, end)] if end > offset else []

    def try_lock(self) -> bool:
        self._check()
        if self.inode.lock not in (None, self):
            return False
        self.inode.lock = self
        return True

    def close(self) -> None:
        self._check()
        self._is_open = False
        if self.inode.lock is self:
            self.inode.lock = None

    def _check(self, writes: bool = False) -> None:
        if not self._is_open or (writes and not self._is_writable):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), str(self._path))


class SimDisk:
    """`holdmq.files.disk.Disk` in memory.

    `capacity_bytes`: blocks that there are, None = no end. `failing(operation, path)` gives an
    errno for an operation that is to fail, else None; `delay(operation, path)` may sleep; neither
    is asked for names of operations other than write, read, sync, truncate, preallocate, create,
    rename, unlink, make_directory, sync_directory and sync_all.
    """

    def __init__(self, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self.points = 0
        self.is_off = False
        self.at_point: Callable[[int, str, Path], object] = _nothing
        self.failing: Callable[[str, Path], int | None] = _nothing
        self.delay: Callable[[str, Path], object] = _nothing
        self.root = Directory()
        self._serial = 0
        self._lock = RLock()

    # What tests do to it

    def after_power_loss(self, seed: int) -> SimDisk:
        """The disk that is found when the power comes back; this one stays as it is."""
        with self._lock:
            disk = SimDisk(self.capacity_bytes)
            loss = Loss(seed, self._serial)
            disk.root = self._survivor(self.root, loss, disk)
            return disk

    def _survivor(self, directory: Directory, loss: Loss, disk: SimDisk) -> Directory:
        survivor = Directory()
        for name, node in sorted(loss.names(directory).items()):
            if isinstance(node, Directory):
                survivor.names[name] = self._survivor(node, loss, disk)
            else:
                survivor.names[name] = inode = Inode(loss.content(node))
                disk.used_bytes += inode.allocated
        survivor.durable = dict(survivor.names)
        return survivor

    def copy(self) -> SimDisk:
        """The same content, all of it durable."""
        with self._lock:
            disk = SimDisk(self.capacity_bytes)
            loss = Loss(0, 0)
            loss.kind = "everything"
            disk.root = self._survivor(self.root, loss, disk)
            return disk

    def after_kill(self) -> SimDisk:
        """The disk after the process died and the machine did not: files as they were, no locks.

        The killed process' disk is off; what it did not fsync still may go.
        """
        with self._lock:
            disk = SimDisk(self.capacity_bytes)
            disk.root, disk.used_bytes, disk._serial = self.root, self.used_bytes, self._serial
            disk.points = self.points
            for inode in _inodes(disk.root):
                inode.lock = None
            self.is_off, self.root = True, Directory()
            return disk

    def content(self, path: Path) -> bytearray:
        """The bytes of a file as reads see them: change them, and the disk has rotted."""
        node = self._node(path)
        assert isinstance(node, Inode)
        return node.data

    # holdmq.files.disk.Disk

    def open(self, path: Path, create: bool = False) -> OpenFile:
        with self._lock:
            if self._find(path) is None and create:
                with self.at("create", path):
                    self._name(path.parent, put=((path.name, Inode()),))
            return self._open(path, True)

    def create_anew(self, path: Path) -> OpenFile:
        with self._lock:
            self.unlink(path)
            return self.open(path, create=True)

    def open_to_read(self, path: Path) -> OpenFile:
        with self._lock:
            return self._open(path, False)

    def _open(self, path: Path, is_writable: bool) -> OpenFile:
        self._check_power()
        node = self._node(path)
        if isinstance(node, Directory):
            raise _error(errno.EISDIR, path)
        return SimFile(self, node, path, is_writable)

    def list(self, directory: Path) -> list[str]:
        with self._lock:
            self._check_power()
            node = self._find(directory)
            if isinstance(node, Inode):
                raise _error(errno.ENOTDIR, directory)
            return [] if node is None else list(node.names)

    def make_directory(self, directory: Path, durable: bool = True) -> None:
        with self._lock:
            self._check_power()
            if isinstance(self._find(directory), Directory):
                return
            self.make_directory(directory.parent, durable)
            with self.at("make_directory", directory):
                self._name(directory.parent, put=((directory.name, Directory()),))
            if durable:
                self.sync_directory(directory.parent)

    def rename(self, source: Path, target: Path) -> None:
        with self.at("rename", target):
            node = self._node(source)
            replaced = self._find(target)
            if source.parent == target.parent:
                self._name(target.parent, gone=(source.name,), put=((target.name, node),))
            else:
                self._name(target.parent, put=((target.name, node),))
                self._name(source.parent, gone=(source.name,))
            if isinstance(replaced, Inode):
                self.used_bytes -= replaced.allocated

    def unlink(self, path: Path) -> None:
        with self._lock:
            node = self._find(path)
            if node is None:
                return
            if isinstance(node, Directory):
                raise _error(errno.EISDIR, path)
            with self.at("unlink", path):
                self._name(path.parent, gone=(path.name,))
                self.used_bytes -= node.allocated

    def sync_directory(self, directory: Path) -> None:
        with self.at("sync_directory", directory):
            node = self._node(directory)
            if isinstance(node, Inode):
                raise _error(errno.ENOTDIR, directory)
            node.sync()

    def sync_all(self, directory: Path) -> None:
        with self.at("sync_all", directory):
            self._node(directory)
            for inode in _inodes(self.root):
                inode.sync()
            for each in _directories(self.root):
                each.sync()

    def space(self, directory: Path) -> Space:
        with self.at("space", directory, is_point=False):
            if self.capacity_bytes is None:
                return Space(0, 0)
            return Space(self.capacity_bytes, max(0, self.capacity_bytes - self.used_bytes))

    # For SimFile

    def at(self, operation: str, path: Path, is_point: bool = True) -> RLock:
        """Announce an operation: number it, slow it, fail it; the lock to do it under."""
        self._check_power()
        if is_point:
            self.points += 1
            self.at_point(self.points, operation, path)
            self._check_power()
        self.delay(operation, path)
        code = self.failing(operation, path)
        if code is not None:
            raise OSError(code, f"injected into {operation}", str(path))
        return self._lock

    def change(self, inode: Inode, offset: int, data: bytes | None) -> None:
        self._serial += 1
        change = Change(self._serial, offset, data)
        inode.changes.append(change)
        apply(inode.data, change)

    def part_of(self, size: int) -> int:
        """How much of a failing write gets through: anything from nothing to all."""
        return self._serial * 2_654_435_761 % (size + 1)

    def grow(self, inode: Inode, size: int) -> int:
        """Take blocks up to `size`; up to where there were some."""
        if size <= inode.allocated or self.capacity_bytes is None:
            fitting = size
        else:
            left = max(0, self.capacity_bytes - self.used_bytes)
            fitting = min(size, inode.allocated + left)
        self.used_bytes += max(0, fitting - inode.allocated)
        inode.allocated = max(inode.allocated, fitting)
        return fitting

    def shrink(self, inode: Inode, size: int) -> None:
        self.used_bytes -= max(0, inode.allocated - size)
        inode.allocated = min(inode.allocated, size)

    def _check_power(self) -> None:
        if self.is_off:
            raise PowerLoss

    def _find(self, path: Path) -> Inode | Directory | None:
        node: Inode | Directory | None = self.root
        for part in path.parts[1:] if path.is_absolute() else path.parts:
            if not isinstance(node, Directory):
                return None
            node = node.names.get(part)
        return node

    def _node(self, path: Path) -> Inode | Directory:
        node = self._find(path)
        if node is None:
            raise _error(errno.ENOENT, path)
        return node

    def _name(
        self,
        directory: Path,
        gone: tuple[str, ...] = (),
        put: tuple[tuple[str, Inode | Directory], ...] = (),
    ) -> None:
        node = self._node(directory)
        if isinstance(node, Inode):
            raise _error(errno.ENOTDIR, directory)
        self._serial += 1
        for name in gone:
            del node.names[name]
        node.names.update(put)
        node.changes.append(Naming(self._serial, gone, put))


def _nothing(*_: object) -> None:
    return None


def _error(code: int, path: Path) -> OSError:
    return OSError(code, os.strerror(code), str(path))


def _directories(directory: Directory) -> Iterable[Directory]:
    yield directory
    for node in directory.names.values():
        if isinstance(node, Directory):
            yield from _directories(node)


def _inodes(directory: Directory) -> Iterable[Inode]:
    for each in _directories(directory):
        yield from (node for node in each.names.values() if isinstance(node, Inode))
