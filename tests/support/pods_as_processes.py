"""What the chart renders, run without a cluster: each container a process with its arguments and files.

Only what Kubernetes would do is done: a pod has an address (one of loopback's 127.0.0.0/8, so that ports stay
as they are), names of services and pods lead to addresses, ConfigMaps, secrets and volumes are directories,
probes are asked, and a pod that is deleted is no endpoint any more, runs its preStop hook, and gets SIGTERM.
"""

from __future__ import annotations

import base64
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from helm_chart import Manifest, Rendered
from processes import wait_until

PUMP_BYTES: Final = 64 << 10
NETWORK: Final = f"127.{64 + os.getpid() % 128}.{os.getpid() // 128 % 250 + 1}"
"""Addresses of this process's pods: others on this machine may run the same test."""


@dataclass
class PodProcess:
    """A pod that runs."""

    name: str
    component: str
    address: str
    directory: Path
    spec: Manifest
    process: subprocess.Popen[bytes]
    is_terminating: bool = False
    grace_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.grace_s = float(self.spec.get("terminationGracePeriodSeconds", 30))

    @property
    def container(self) -> Manifest:
        """Its one container."""
        (container,) = self.spec["containers"]
        return dict(container)

    def port(self, name: str) -> int:
        """The number of a named port."""
        return int({one["name"]: one["containerPort"] for one in self.container["ports"]}[name])

    def get(self, path: str, port: str = "admin") -> tuple[int, str]:
        """What the pod answers to a GET; status 0 = nothing."""
        try:
            url = f"http://{self.address}:{self.port(port)}{path}"
            with urllib.request.urlopen(url, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def probe(self, name: str) -> int:
        """The status that a probe is answered with."""
        asked = self.container[name]["httpGet"]
        return self.get(asked["path"], asked["port"])[0]

    @property
    def is_endpoint(self) -> bool:
        """Whether services send connections here."""
        return not self.is_terminating and self.process.poll() is None and self.probe("readinessProbe") == 200

    def log(self) -> str:
        """What its container has written."""
        return (self.directory / "log").read_text(errors="replace")


class LoopbackCluster:
    """The pods of one installation; close it at the end."""

    def __init__(self, rendered: Rendered, directory: Path) -> None:
        self.rendered = rendered
        self.pods: dict[str, PodProcess] = {}
        self.services: dict[str, ServiceForwarder] = {}
        self._directory = directory
        self._addresses: dict[str, str] = {}
        for one in rendered.all("StatefulSet"):
            for index in range(one["spec"]["replicas"]):
                self._address_of(f"{one['metadata']['name']}-{index}")

    def close(self) -> None:
        """Kill what still runs."""
        for service in self.services.values():
            service.close()
        for pod in self.pods.values():
            pod.process.kill()
            pod.process.wait()

    def start(self, component: str, name: str) -> PodProcess:
        """Start a pod of a component under the name that its controller would give it."""
        spec = self.rendered.pod(component)
        directory = self._directory / name
        directory.mkdir()
        places = self._mount(spec, directory)
        (container,) = spec["containers"]
        environ = {key: value for key, value in os.environ.items() if key in ("PATH", "PYTHONPATH")}
        environ |= self._variables(container, name)
        arguments = [self._translated(one, name, places, environ) for one in container["args"]]
        with (directory / "log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "holdmq.cli", *arguments],
                env=environ, cwd=directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        pod = self.pods[name] = PodProcess(name, component, self._address_of(name), directory, spec, process)
        return pod

    def wait_ready(self, *pods: PodProcess) -> None:
        """Wait until these are endpoints, each started first."""
        for pod in pods:
            wait_until(
                lambda pod=pod: pod.is_endpoint or pod.process.poll() is not None,  # type: ignore[misc]
                f"{pod.name} is ready",
            )
            assert pod.process.poll() is None, f"{pod.name} has ended:\n{pod.log()}"

    def delete(self, pod: PodProcess) -> int:
        """End a pod as Kubernetes does; its exit code. AssertionError when it had to be killed."""
        began = time.monotonic()
        pod.is_terminating = True
        hook = pod.container.get("lifecycle", {}).get("preStop")
        if hook:
            subprocess.run(hook["exec"]["command"], check=True)
        pod.process.send_signal(signal.SIGTERM)
        try:
            code = pod.process.wait(pod.grace_s - (time.monotonic() - began))
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{pod.name} had to be killed after {pod.grace_s} s:\n{pod.log()}") from None
        del self.pods[pod.name]
        return code

    def service(self, name: str, port: int) -> ServiceForwarder:
        """Port of a service: a port of loopback from which connections go to its endpoints in turn."""
        at = f"{name}:{port}"
        if at not in self.services:
            spec = self.rendered.one("Service", name)["spec"]
            (target,) = [one["targetPort"] for one in spec["ports"] if one["port"] == port]
            self.services[at] = ServiceForwarder(self, spec["selector"], target)
        return self.services[at]

    def endpoints(self, selector: dict[str, str]) -> list[PodProcess]:
        """The ready pods with these labels."""
        component = selector["app.kubernetes.io/component"]
        return [pod for pod in list(self.pods.values()) if pod.component == component and pod.is_endpoint]

    def secret(self, pod: PodProcess, name: str) -> Path:
        """Where a pod has a file of a secret."""
        return pod.directory / "run/secrets/holdmq" / name

    def _address_of(self, pod: str) -> str:
        return self._addresses.setdefault(pod, f"{NETWORK}.{len(self._addresses) + 1}")

    def _mount(self, spec: Manifest, directory: Path) -> dict[str, str]:
        """Make the container's volumes in `directory`; mount path → where it is."""
        (container,) = spec["containers"]
        volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
        places = {}
        for mount in container["volumeMounts"]:
            path, volume = mount["mountPath"], volumes.get(mount["name"], {})
            place = directory / path.lstrip("/")
            place.mkdir(parents=True, exist_ok=True)
            places[path] = str(place)
            if "configMap" in volume:
                data = self.rendered.one("ConfigMap", volume["configMap"]["name"])["data"]
                for name, text in data.items():
                    (place / name).write_text(text)
            elif "secret" in volume:
                data = self.rendered.one("Secret", volume["secret"]["secretName"])["data"]
                for item in volume["secret"]["items"]:
                    file = place / item["path"]
                    file.write_bytes(base64.b64decode(data[item["key"]]))
                    file.chmod(volume["secret"]["defaultMode"])
        name = directory.name
        for path, place_text in places.items():
            for file in Path(place_text).glob("*.toml"):
                if path == "/etc/holdmq":
                    file.write_text(self._translated(file.read_text(), name, places, {}))
        return places

    def _variables(self, container: Manifest, name: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for one in container.get("env", []):
            if "valueFrom" in one:
                assert one["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.name"}}
                found[one["name"]] = name
            else:
                found[one["name"]] = self._translated(one["value"], name, {}, found)
        return found

    def _translated(self, text: str, pod: str, places: dict[str, str], variables: dict[str, str]) -> str:
        """What a container sees in place of `text`."""
        for name, value in variables.items():
            text = text.replace(f"$({name})", value)
        for name, address in self._addresses.items():
            text = re.sub(rf"\b{re.escape(name)}\.[a-z0-9.-]+\.svc\.[a-z.]+", address, text)
        for service in (one["metadata"]["name"] for one in self.rendered.all("Service")):
            for port in re.findall(rf"^{re.escape(service)}:(\d+)$", text):
                text = f"127.0.0.1:{self.service(service, int(port)).port}"
        if places:
            paths = "|".join(map(re.escape, sorted(places, key=len, reverse=True)))
            text = re.sub(rf'(?<![\w/])({paths})(?=[/"\s]|$)', lambda found: places[found[1]], text)
        if pod:
            text = text.replace('bind = "0.0.0.0"', f'bind = "{self._address_of(pod)}"')
        return text


class ServiceForwarder:
    """A service's port: each new connection goes to the next ready pod."""

    def __init__(self, cluster: LoopbackCluster, selector: dict[str, str], target: str) -> None:
        self._cluster = cluster
        self._selector = selector
        self._target = target
        self._turn = 0
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=200)
        self.port: int = self._listening.getsockname()[1]
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections, and end those that there are."""
        self._listening.close()
        for one in list(self._open):
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        pods = self._cluster.endpoints(self._selector)
        if not pods:
            client.close()
            return
        self._turn += 1
        pod = pods[self._turn % len(pods)]
        try:
            server = socket.create_connection((pod.address, pod.port(self._target)), 10)
        except OSError:
            client.close()
            return
        server.settimeout(None)
        self._open |= {client, server}
        other = threading.Thread(target=self._pump, args=(server, client), daemon=True)
        other.start()
        self._pump(client, server)
        other.join()
        self._open -= {client, server}
        client.close()
        server.close()

    @staticmethod
    def _pump(source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(PUMP_BYTES):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            for one in (source, sink):
                try:
                    one.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue


def metric_names(text: str) -> set[str]:
    """The names of the samples in a text of Prometheus, and those that its families would have."""
    found = set(re.findall(r"^([a-z_][a-z0-9_]*)[{ ]", text, re.MULTILINE))
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE):
        found.add(name)
        if kind == "histogram":
            found |= {f"{name}_bucket", f"{name}_sum", f"{name}_count"}
    return found
