"""The chart as helm renders it: manifests by kind and name, and what the products in their pods are given."""

from __future__ import annotations

import functools
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from holdmq.config.model import Config
from holdmq.config.sources import load

ROOT: Final = Path(__file__).parents[2]
CHART: Final = ROOT / "helm" / "holdmq"
NODE: Final = ROOT / "build" / "node"
NAMESPACE: Final = "iot"
RELEASE: Final = "hm"
NAME: Final = "hm-holdmq"
VALUES: Final = sorted(CHART.glob("ci/*.yaml"))
MAJORS: Final = (3, 4)
KUBERNETES: Final = ("1.29", "1.35")
"""The oldest that the chart says it is for, and the newest that helm 4.1 knows."""

Manifest = dict[str, Any]


def helm(major: int, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run helm 3 or 4 to its end."""
    return subprocess.run(
        [NODE / f"helm{major}", *arguments], capture_output=True, text=True, check=False, timeout=60
    )


@functools.cache
def template(
    values: str, *, files: tuple[Path, ...] = (), major: int = 4, version: str = "1.35", apis: str = ""
) -> str:
    """What `helm template` prints for `values`, as JSON, over `files`; HelmRefused with its error."""
    done = subprocess.run(
        [
            NODE / f"helm{major}", "template", RELEASE, CHART, "--namespace", NAMESPACE,
            "--kube-version", f"{version}.0", *(f"--values={file}" for file in files),
            *([f"--api-versions={apis}"] if apis else []), "--values=-",
        ],
        input=values, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    if done.returncode:
        raise HelmRefused(done.stderr)
    return done.stdout


class HelmRefused(Exception):
    """Helm has rendered nothing; it says why."""


@dataclass(frozen=True)
class Rendered:
    """The manifests of one installation."""

    manifests: list[Manifest]

    def one(self, kind: str, name: str = "") -> Manifest:
        """The manifest of this kind whose name ends so."""
        (found,) = (one for one in self.all(kind) if one["metadata"]["name"].endswith(name))
        return found

    def all(self, kind: str) -> list[Manifest]:
        """All manifests of a kind."""
        return [one for one in self.manifests if one["kind"] == kind]

    def pods(self) -> Iterator[tuple[str, Manifest]]:
        """The spec of each pod there will be, by its component."""
        for one in self.manifests:
            templates = [one["spec"]["template"]] if one["kind"] in ("Deployment", "StatefulSet") else []
            if one["kind"] == "SparkApplication":
                templates = [one["spec"][role]["template"] for role in ("driver", "executor")]
            if one["kind"] == "Pod":
                templates = [one]
            for pod in templates:
                yield pod["metadata"]["labels"]["app.kubernetes.io/component"], pod["spec"]

    def pod(self, component: str) -> Manifest:
        """The spec of this component's pod."""
        return dict(self.pods())[component]

    def container(self, component: str) -> Manifest:
        """The container of this component's pod."""
        (container,) = self.pod(component)["containers"]
        return container

    def toml(self, component: str) -> str:
        """holdmq.toml of a component."""
        return str(self.one("ConfigMap", f"-{component}")["data"]["holdmq.toml"])

    def config(self, component: str, directory: Path) -> Config:
        """What a component's process reads. Raises ConfigError as it would."""
        path = directory / f"{component}.toml"
        path.write_text(self.toml(component))
        return load(path, environ={})


def render(*files: Path, apis: str = "", major: int = 4, version: str = "1.35", **values: Any) -> Rendered:
    """The installation of `values`, over those of `files`."""
    text = template(json.dumps(values), files=files, major=major, version=version, apis=apis)
    # The loader in C: a tenth of the time.
    return Rendered([one for one in yaml.load_all(text, yaml.CSafeLoader) if one])


def anonymous(**values: Any) -> Rendered:
    """The installation of `values`, with clients that need no credentials."""
    return render(mqtt={"allowAnonymous": True}, **values)
