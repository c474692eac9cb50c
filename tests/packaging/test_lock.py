"""requirements/: whole, in the ranges of pyproject.toml, with hashes, without addresses, and installed."""

from __future__ import annotations

import json
import platform
import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCKS = ROOT / "requirements"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PYPROJECT["project"]["optional-dependencies"]
WANTED: dict[str, list[str]] = {
    "core": PYPROJECT["project"]["dependencies"],
    **{name: ones for name, ones in EXTRAS.items() if name != "all"},
    **PYPROJECT["dependency-groups"],
}
"""Name of a lock → what pyproject.toml asks of it."""
PYTHONS = [
    said.rpartition(" ")[2]
    for said in PYPROJECT["project"]["classifiers"]
    if re.search(r"Python :: 3\.\d+$", said)
]
MACHINES = ["x86_64", "aarch64"]


class Pin(NamedTuple):
    """A package in a lock."""

    requirement: Requirement
    hashes: list[str]

    @property
    def name(self) -> str:
        return canonicalize_name(self.requirement.name)

    @property
    def version(self) -> str:
        (one,) = self.requirement.specifier
        return one.version if one.operator == "==" else ""

    def holds_on(self, python: str, machine: str) -> bool:
        """Whether it is for Linux on `machine` with the last release of `python`."""
        marker = self.requirement.marker
        environment = {
            **default_environment(),
            "platform_machine": machine,
            "python_version": python,
            "python_full_version": f"{python}.99",
        }
        return marker is None or marker.evaluate({str(key): str(value) for key, value in environment.items()})


def pins(name: str) -> list[Pin]:
    """Return what requirements/`name`.txt names."""
    text = re.sub(r"\\\n", " ", (LOCKS / f"{name}.txt").read_text())
    found = []
    for line in text.splitlines():
        if line and not line.startswith("#"):
            requirement, *hashes = re.split(r"\s+--hash=", line.strip())
            found.append(Pin(Requirement(requirement), hashes))
    return found


def everything() -> Iterator[tuple[str, Pin]]:
    return ((name, pin) for name in WANTED for pin in pins(name))


def test_there_is_a_lock_for_the_core_for_each_extra_and_for_each_group() -> None:
    assert {path.stem for path in LOCKS.glob("*.txt")} == {*WANTED, "all"}
    (all_of_them,) = map(Requirement, EXTRAS["all"])
    named = (LOCKS / "all.txt").read_text().split("\n")
    assert {line for line in named if line} == {f"-r {name}.txt" for name in {"core"} | all_of_them.extras}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("name", WANTED)
def test_what_a_lock_is_for_is_in_it_in_the_range_that_is_asked_for(
    name: str, python: str, machine: str
) -> None:
    """`make lock` writes it again after a change of pyproject.toml."""
    locked = {pin.name: pin for pin in pins(name) if pin.holds_on(python, machine)}
    assert locked
    for wanted in map(Requirement, WANTED[name]):
        pin = locked[canonicalize_name(wanted.name)]
        assert pin.version in wanted.specifier, f"{pin.requirement} of {name}.txt is not {wanted}: make lock"
        assert wanted.extras <= pin.requirement.extras


def test_builds_find_what_they_ask_for_in_the_lock_of_builds() -> None:
    locked = {pin.name: pin.version for pin in pins("build")}
    hook = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["mypyc"]
    for wanted in map(Requirement, PYPROJECT["build-system"]["requires"] + hook["dependencies"]):
        assert locked[canonicalize_name(wanted.name)] in wanted.specifier


def test_all_locks_name_the_same_version_of_a_package() -> None:
    for python in PYTHONS:
        versions: dict[str, set[str]] = {}
        for _, pin in everything():
            if pin.holds_on(python, MACHINES[0]):
                versions.setdefault(pin.name, set()).add(pin.version)
        assert {name: several for name, several in versions.items() if len(several) > 1} == {}


def test_each_package_has_one_version_and_its_hashes() -> None:
    for name, pin in everything():
        assert pin.version, f"{name}: {pin.requirement}"
        assert pin.hashes, f"{name}: {pin.requirement}"
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", one) for one in pin.hashes), pin


def test_the_locks_do_not_say_where_packages_come_from() -> None:
    """That is for each machine to say: it may have a mirror."""
    for path in LOCKS.glob("*.txt"):
        text = path.read_text()
        assert "://" not in text
        assert not re.search(r"^--|^-[^r]", text, re.MULTILINE)
    packages = json.loads((LOCKS / "node/package-lock.json").read_text())["packages"]
    assert not any("resolved" in package for package in packages.values())


def test_packages_of_node_have_hashes_and_are_those_that_are_asked_for() -> None:
    wanted = json.loads((LOCKS / "node/package.json").read_text())["dependencies"]
    root, *packages = json.loads((LOCKS / "node/package-lock.json").read_text())["packages"].items()
    assert root[1]["dependencies"] == wanted
    assert {f"node_modules/{name}" for name in wanted} <= {path for path, _ in packages}
    assert all(package["integrity"].startswith("sha512-") for _, package in packages)


def test_what_runs_the_tests_is_what_is_locked() -> None:
    """Of the packages in the locks that `.ci/setup test` installs. Another version: .ci/setup test"""
    python = ".".join(platform.python_version_tuple()[:2])
    names = [
        line.removeprefix("-r ").removesuffix(".txt") for line in (LOCKS / "all.txt").read_text().split("\n")
    ]
    other = {}
    for name in [*filter(None, names), "build", "dev"]:
        for pin in pins(name):
            if pin.holds_on(python, platform.machine()):
                try:
                    found = version(pin.name)
                except PackageNotFoundError:
                    found = "missing"
                if found != pin.version:
                    other[f"{pin.name}=={pin.version}"] = found
    assert other == {}


def test_setup_installs_nothing_but_what_is_locked() -> None:
    setup = (ROOT / ".ci/setup").read_text()
    (options,) = re.findall(r"^    \.venv/bin/python -m pip install (.*)$", setup, re.MULTILINE)
    assert "--no-build-isolation" in options
    assert setup.count("pip install") == 1
    for command in re.findall(r"^ *(?:HATCH\S+ )?pip_install (.*)$", setup, re.MULTILINE):
        assert "--require-hashes" in command or "--no-deps" in command
    assert re.findall(r"npm \w+", setup)[-1] == "npm ci"
    image = (ROOT / "Containerfile").read_text()
    for line in re.findall(r"pip (?:\S+ )*?(?:install|wheel) .*", image):
        assert {"--require-hashes", "--no-deps"} & set(line.split()), line
