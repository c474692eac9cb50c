"""Small files that are replaced as a whole: configuration, checkpoint, epochs.

A file is JSON: `format`, `dataVersion`, `crc32` (of these two and the content's canonical JSON)
and `content`. It is written beside its place, fsynced and renamed over; what was there before
stays as `.bak`. Source: storage.md, Files.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, NamedTuple
from zlib import crc32

from holdmq.errors import StorageError, StoreFormatError, StoreFullError
from holdmq.files.disk import FULL_ERRORS, Disk, RealDisk

FORMAT: Final = 1
SIZE_MAX: Final = 256 * 1024 * 1024
"""No such file is near this; one that is was never written by us."""
SLICE_ENTRIES: Final = 64
"""Entries of an object given to the JSON encoder at once: no other thread runs until it is done."""


class Loaded(NamedTuple):
    """What a file held; `from_backup` when the file itself was missing or damaged."""

    content: dict[str, Any]
    data_version: int
    from_backup: bool


class AtomicFile:
    """One file and its backup. All methods block; one thread at a time may save.

    `file_format` is the newest format of this file that this HoldMQ knows, and the one it writes.
    """

    def __init__(self, path: Path, disk: Disk | None = None, file_format: int = FORMAT) -> None:
        self.path = path
        self._format = file_format
        self.backup_path = path.with_name(path.name + ".bak")
        self._disk: Disk = RealDisk() if disk is None else disk
        # Size and CRC of what was read or written last: what is still that need not be parsed again.
        self._written = (0, 0)

    @property
    def size_bytes(self) -> int:
        """How many bytes it has that was read, or written, last; 0 = neither was."""
        return self._written[0]

    def load(self, accept_backup: bool = False) -> Loaded | None:
        """Read the file; None when neither it nor a backup exists.

        Raises StoreFormatError when the file is damaged or of a newer format, or missing while a
        backup exists; with `accept_backup` the backup is read instead (not for a newer format).
        """
        problem = "it is missing, but its backup is there"
        raw = self._read(self.path)
        if raw is not None:
            parsed = self._parse(raw, self.path)
            if isinstance(parsed, Loaded):
                self._written = (len(raw), crc32(raw))
                return parsed
            problem = parsed
        backup = self._read(self.backup_path)
        if raw is None and backup is None:
            return None
        if accept_backup and backup is not None:
            parsed = self._parse(backup, self.backup_path)
            if isinstance(parsed, Loaded):
                return parsed._replace(from_backup=True)
            problem = f"{problem}; its backup too: {parsed}"
        hint = "restore it"
        if backup is not None:
            hint += ", or start with --accept-backup to go on with the older " + self.backup_path.name
        raise StoreFormatError(problem, operation="open", path=str(self.path), hint=hint)

    def save(self, content: dict[str, Any], data_version: int) -> None:
        """Replace the file durably; the one before becomes the backup. Raises StorageError."""
        raw = _rendered(self._format, data_version, _canonical(content))
        directory = self.path.parent
        temporary = self.path.with_name(self.path.name + ".tmp")
        disk = self._disk
        try:
            disk.make_directory(directory)
            self._write(temporary, raw)
            before = self._read(self.path)
            if before is not None and self._is_whole(before):
                # Written anew and not linked, so that at every moment both names are whole files.
                aside = self.path.with_name(self.path.name + ".bak.tmp")
                self._write(aside, before)
                disk.rename(aside, self.backup_path)
            disk.rename(temporary, self.path)
            self._written = (len(raw), crc32(raw))
            disk.sync_directory(directory)
        except OSError as error:
            kind = StoreFullError if error.errno in FULL_ERRORS else StorageError
            raise kind(error.strerror or str(error), operation="write", path=str(self.path)) from error

    def of_bytes(self, raw: bytes) -> Loaded:
        """Read what the file would hold with these bytes. StoreFormatError when it is damaged, or newer."""
        parsed = self._parse(raw, self.path)
        if isinstance(parsed, Loaded):
            return parsed
        raise StoreFormatError(parsed, operation="open", path=str(self.path))

    def _is_whole(self, raw: bytes) -> bool:
        return self._written == (len(raw), crc32(raw)) or isinstance(self._parse(raw, self.path), Loaded)

    def problem(self) -> str:
        """What is wrong with the file, byte for byte; empty = nothing. StorageError if it cannot be read."""
        raw = self._read(self.path)
        if raw is None:
            return "it is missing"
        parsed = self._parse(raw, self.path)
        if not isinstance(parsed, Loaded):
            return parsed
        version: int = json.loads(raw)["format"]
        if raw != _rendered(version, parsed.data_version, _canonical(parsed.content)):
            return "it is damaged, or was edited: its bytes are not as they were written"
        return ""

    def _write(self, path: Path, raw: bytes) -> None:
        file = self._disk.create_anew(path)
        try:
            file.write([raw], 0)
            file.sync()
        finally:
            file.close()

    def _read(self, path: Path) -> bytes | None:
        try:
            file = self._disk.open_to_read(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(error.strerror or str(error), operation="open", path=str(path)) from error
        try:
            return bytes(file.read(0, min(file.size(), SIZE_MAX)))
        except OSError as error:
            raise StorageError(error.strerror or str(error), operation="read", path=str(path)) from error
        finally:
            file.close()

    def _parse(self, raw: bytes, path: Path) -> Loaded | str:
        try:
            value = json.loads(raw)
        except ValueError as error:
            return f"it is damaged: no JSON ({error})"
        if not isinstance(value, dict):
            return "it is damaged: no JSON object"
        version = value.get("format")
        if isinstance(version, int) and version > self._format:
            raise StoreFormatError(
                f"its format is {version}, this HoldMQ knows formats up to {self._format}",
                operation="open",
                path=str(path),
                hint="start the newer HoldMQ that wrote it",
            )
        content = value.get("content")
        data_version = value.get("dataVersion")
        if not isinstance(version, int) or not isinstance(content, dict) or not isinstance(data_version, int):
            return "it is damaged: format, dataVersion or content is missing"
        if _checksum(version, data_version, _canonical(content)) != value.get("crc32"):
            return "it is damaged: its checksum does not match"
        return Loaded(content, data_version, False)


def _rendered(version: int, data_version: int, body: bytes) -> bytes:
    checksum = _checksum(version, data_version, body)
    head = f'{{"format":{version},"dataVersion":{data_version},"crc32":{checksum},"content":'
    return b"".join((head.encode(), body, b"}\n"))


def _checksum(version: int, data_version: int, body: bytes) -> int:
    return crc32(body, crc32(f"{version},{data_version},".encode()))


def _canonical(content: dict[str, Any]) -> bytes:
    parts: list[str] = []
    _add_object(content, parts)
    return "".join(parts).encode()


def _add_object(value: dict[str, Any], parts: list[str]) -> None:
    """Add an object's JSON, as one call of the encoder would give it, slice by slice."""
    parts.append("{")
    some: dict[str, Any] = {}
    separator = ""
    for key in sorted(value):
        inner = value[key]
        is_large = _is_large(inner)
        if not is_large:
            some[key] = inner
        if some and (is_large or len(some) >= SLICE_ENTRIES):
            parts.append(separator + _encoded(some)[1:-1])
            some, separator = {}, ","
        if is_large:
            parts.append(separator + _encoded({key: 0})[1:-2])
            separator = ","
            _add_object(inner, parts)
    if some:
        parts.append(separator + _encoded(some)[1:-1])
    parts.append("}")


def _is_large(value: object) -> bool:
    return isinstance(value, dict) and (
        len(value) > SLICE_ENTRIES or any(_is_large(inner) for inner in value.values())
    )


def _encoded(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
