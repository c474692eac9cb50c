"""The distribution as users get it: sdist → wheel → a new virtual environment."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PACKAGES = {
    "gateway",
    "broker",
    "storage",
    "registry",
    "pyspark_holdmq",
    "spark_streaming",
    "loadtest",
    "console",
    "holdmq",
}


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, "--sdist", tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("unpacked")
    # Not tarfile: versions of Python differ in whether it wants a filter or has none.
    subprocess.run(["tar", "-xf", sdist, "-C", source], check=True)
    (unpacked,) = source.iterdir()
    return build(unpacked, "--wheel", tmp_path_factory.mktemp("wheel"))


def build(source: Path, kind: str, target: Path) -> Path:
    # hatchling is pure Python and installed for the tests: no second environment is needed to build.
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", kind, "--outdir", target, source],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = target.iterdir()
    return built


def test_the_sdist_holds_what_a_build_and_its_tests_need(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "pyproject.toml",
        "LICENSE",
        "README.md",
        "Makefile",
        "holdmq/config/model.py",
        "tests/conftest.py",
    } <= names
    assert not any(name.startswith((".venv", "holdmq-data")) or name.endswith(".pyc") for name in names)


def test_the_top_level_names_of_the_wheel_are_the_folders_of_the_house(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.partition("/")[0] for name in archive.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == PACKAGES


def test_the_wheel_installs_and_its_command_runs_without_the_extras(wheel: Path, tmp_path: Path) -> None:
    home = tmp_path / "venv"
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python]
    # Bytecode of everything would take as long as the rest.
    install = [*pip, "install", "--quiet", "--no-compile"]
    for command in (
        [*install, "--require-hashes", "--requirement", ROOT / "requirements/core.txt"],
        [*install, "--no-deps", wheel],
        [*pip, "check"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    listed = subprocess.run(
        [home / "bin" / "holdmq", "--version"], capture_output=True, text=True, check=True
    )
    assert re.fullmatch(r"holdmq \S+, sources\n", listed.stdout)
    installed = "import holdmq, sys; sys.exit(not holdmq.__file__.startswith(sys.prefix))"
    subprocess.run([python, "-P", "-c", installed], check=True, cwd=tmp_path)
    lacking = subprocess.run(
        [home / "bin" / "holdmq", "stats"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert lacking.returncode == 1
    assert "pip install 'holdmq[spark]'" in lacking.stderr
