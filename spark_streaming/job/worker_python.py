"""The Python that Spark starts its workers with on this machine: this one, and it imports what this one does.

Spark puts the zip of PySpark that comes with it in front of their import path, and nobody keeps bytecode of
modules in a zip: each of the dozen processes of a start compiled all that it imports, which took three times
the CPU. On a busy machine a planner then did not connect within Spark's ten seconds.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from holdmq.files.disk import RealDisk
from holdmq.files.private_file import replace_file
from spark_streaming.job.home import unusable

_LAUNCHER: Final = """#!/bin/sh
# Runs {python} with the import path of the process that wrote this, not with Spark's.
{path}
exec {python} "$@"
"""
_NAMES: Final = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")


@contextmanager
def workers_run(python: str) -> Iterator[None]:
    """Have the session that is made inside run its workers by `python`, wherever they are.

    A source is planned here and read at executors, both by the Python that Spark takes for the driver's.
    The environment is as it was afterwards: no other session gets a launcher that is gone by then.
    """
    before = {name: os.environ.get(name) for name in _NAMES}
    os.environ.update(dict.fromkeys(_NAMES, python))
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def write_launcher(data: Path) -> Path:
    """Write the launcher into the scratch space of the directory `data`, and return it.

    Raises StartupError when it cannot be written.
    """
    launcher = data.resolve() / "tmp" / "python"
    own = os.environ.get("PYTHONPATH")
    path = "unset PYTHONPATH" if own is None else f"PYTHONPATH={shlex.quote(own)}"
    try:
        RealDisk().make_directory(launcher.parent, durable=False)
        text = _LAUNCHER.format(python=shlex.quote(sys.executable), path=path)
        # Who could change it would have his program run by the job.
        replace_file(launcher, text.encode(), 0o700)
    except OSError as error:
        raise unusable(data, error) from error
    return launcher
