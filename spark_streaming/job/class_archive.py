"""An archive of Spark's classes for the own JVM: to load and verify them is half of the CPU of its start.

It lies in the Python environment that it is for (``share/holdmq/spark-….jsa``, 170 MB) and is gone with it.
Its name stands for this Java and these jars; Java checks both by itself and starts without an archive that
does not fit. Made by write_class_archive.py. Source: JEP 350, dynamic archives.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import Final

import pyspark

SUFFIX: Final = ".jsa"
# A JVM that cannot use its archive says so on its output, several lines, and goes on.
_QUIET: Final = "-Xlog:disable -Xlog:all=warning:stderr -Xlog:cds*=off -Xlog:class+path*=off"


def archive_path(java_home: Path) -> Path:
    """Return where the archive for this Java and these jars is, or would be. OSError without either."""
    java = (java_home / "bin" / "java").resolve()
    known = [f"{java} {java.stat().st_mtime_ns}"]
    with os.scandir(_jars()) as jars:
        known += sorted(f"{jar.name} {jar.stat().st_mtime_ns} {jar.stat().st_size}" for jar in jars)
    name = hashlib.sha256("\n".join(known).encode()).hexdigest()[:16]
    return Path(sys.prefix) / "share" / "holdmq" / f"spark-{name}{SUFFIX}"


def options(java_home: Path) -> list[str]:
    """Return what a JVM is told to use the archive; nothing while there is none."""
    try:
        path = archive_path(java_home)
        is_there = path.is_file()
    except OSError:
        # Whatever is away will be said by the JVM, which needs it more.
        return []
    return [f"-XX:SharedArchiveFile={path}", *_QUIET.split()] if is_there else []


def _jars() -> Path:
    home = os.environ.get("SPARK_HOME") or os.path.dirname(pyspark.__file__)
    return Path(home) / "jars"
