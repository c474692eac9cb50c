#!/usr/bin/env python3
"""Writes requirements/: version and hashes of all that HoldMQ is built, run, tested and compared with.

There is a file for `core`, the dependencies in pyproject.toml, and one for each of its extras and groups, so
that any of them can be installed beside others. All are of one resolution, which holds for each Python and
processor that pyproject.toml allows. `requirements/node` is the same for the tests' package of Node.js.

Versions that are locked stay, unless pyproject.toml wants others. `lock.py --upgrade` takes the newest of all
that it allows, `lock.py --upgrade-package NAME` the newest of one.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
LOCKS = ROOT / "requirements"
WORK = ROOT / "build/lock"
UV = Path(sys.executable).parent / "uv"
PIN = re.compile(r"^[^\s#-].*?==.*?(?= \\$)", re.MULTILINE)


PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PYPROJECT["project"]["optional-dependencies"]


def wanted() -> dict[str, list[str]]:
    """Name of a lock → what it shall hold, as pyproject.toml says it."""
    extras = {name: ones for name, ones in EXTRAS.items() if name != "all"}
    return {"core": PYPROJECT["project"]["dependencies"], **extras, **PYPROJECT["dependency-groups"]}


def extras_of_all() -> list[str]:
    """The extras that `all` names."""
    (named,) = EXTRAS["all"]
    return named.removeprefix("holdmq[").removesuffix("]").split(",")


def resolve(requirements: list[str], target: Path, *arguments: str | Path) -> None:
    """Write to `target` a version and the hashes for each of `requirements` and of what these need."""
    source = WORK / f"{target.stem}.in"
    source.write_text("\n".join(requirements) + "\n")
    subprocess.run(
        [
            *(UV, "pip", "compile", "--quiet", source, "--output-file", target),
            *(
                "--universal",
                "--python-version",
                "3.11",
                "--generate-hashes",
                "--no-annotate",
                "--no-strip-extras",
            ),
            # Where packages come from is for each machine to say.
            *("--no-emit-index-url", "--no-emit-find-links", "--custom-compile-command", "make lock"),
            *arguments,
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )


def lock_python(arguments: list[str]) -> None:
    groups = wanted()
    locked = {pin for path in LOCKS.glob("*.txt") for pin in PIN.findall(path.read_text())}
    whole = WORK / "whole.txt"
    whole.write_text("\n".join(sorted(locked)) + "\n")  # which versions to keep
    resolve(sorted({one for ones in groups.values() for one in ones}), whole, *arguments)
    parts = WORK / "parts"
    parts.mkdir()
    for name, ones in groups.items():
        resolve(ones, parts / f"{name}.txt", "--constraint", whole)
    (parts / "all.txt").write_text("".join(f"-r {name}.txt\n" for name in ("core", *extras_of_all())))
    for path in LOCKS.glob("*.txt"):
        path.unlink()
    for path in parts.iterdir():
        path.rename(LOCKS / path.name)


def lock_node(*, upgrade: bool) -> None:
    """Lock requirements/node/package.json, without the addresses of a registry."""
    if upgrade:
        (LOCKS / "node/package-lock.json").unlink(missing_ok=True)
    subprocess.run(
        [
            *("npm", "install", "--prefix", LOCKS / "node", "--package-lock-only", "--ignore-scripts"),
            # The packages that carry helm are not run: what they would be used with stays away.
            *("--legacy-peer-deps", "--omit-lockfile-registry-resolved"),
            *("--no-audit", "--no-fund", "--loglevel=error"),
        ],
        check=True,
    )


if __name__ == "__main__":
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    lock_python(sys.argv[1:])
    lock_node(upgrade="--upgrade" in sys.argv[1:])
