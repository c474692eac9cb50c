"""The installed command runs what was compiled of a checkout's sources, while these are not newer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = "from holdmq.cli import installed\ninstalled()\n"
REPLACED = "def running_build(): return 'the modules in build/compiled'\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the package, beside what a compiler could have made of it."""
    sources = Path(__file__).parents[3] / "holdmq"
    for place in (tmp_path, tmp_path / "build" / "compiled"):
        place.mkdir(parents=True, exist_ok=True)
        for module in sources.rglob("*.py"):
            copy = place / "holdmq" / module.relative_to(sources)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(module.read_bytes())
            os.utime(copy, (1, 1))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "holdmq").write_text(SCRIPT)
    with (tmp_path / "build" / "compiled" / "holdmq" / "service" / "build.py").open("a") as module:
        module.write(REPLACED)
    return tmp_path


def version(checkout: Path, **environment: str) -> str:
    """What `holdmq --version` of the checkout prints."""
    keep = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    done = subprocess.run(
        [sys.executable, checkout / "bin" / "holdmq", "--version"],
        env={**keep, "PYTHONPATH": str(checkout), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_what_is_compiled_runs(checkout: Path) -> None:
    assert "the modules in build/compiled" in version(checkout)


def test_sources_that_are_newer_run_instead(checkout: Path) -> None:
    (checkout / "holdmq" / "errors.py").touch()
    os.utime(checkout / "build" / "compiled", (1, 1))
    assert "sources" in version(checkout)


def test_what_python_path_names_is_still_found(checkout: Path, tmp_path: Path) -> None:
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    (plugins / "sitecustomize.py").write_text("import sys; sys.stdout.write('a plug-in is found\\n')\n")
    path = os.pathsep.join((str(checkout), str(plugins)))
    # Once by each of the two processes.
    assert version(checkout, PYTHONPATH=path).count("a plug-in is found") == 2
