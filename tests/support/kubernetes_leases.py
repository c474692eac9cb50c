"""The Kubernetes API for objects of the kind Lease, as far as HoldMQ uses it, with faults of a test's choice.

What an API server does is done here, too: objects are checked against the schema, a patch is good for
the resourceVersion that it names, reads ask the store unless they allow a cache, which is behind, as are
watches.
"""

from __future__ import annotations

import asyncio
import copy
import json
import random
import re
import ssl
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from enum import Enum
from typing import Any, Final

import kubernetes_validate
import yaml
from aiohttp import web
from processes import free_port

API: Final = "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
NAMESPACE: Final = "brokers"
TOKEN: Final = "token-of-the-replica"
EVENTS_MAX: Final = 1_000
"""Events that watches can begin at; older ones are gone, as after a compaction."""
MICRO_TIME: Final = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"

Lease = dict[str, Any]


class LeaseFault(Enum):
    """What happens to a request in place of what should."""

    HANG = "it is not done, and not answered"
    HANG_AFTER = "it is done, and not answered"
    BREAK = "it is not done, and the connection breaks"
    BREAK_AFTER = "it is done, and the connection breaks"
    FAIL = "it is not done, and answered with 500"
    FAIL_AFTER = "it is done, and answered with 500"
    BUSY = "it is not done, and answered with 429"
    UNAUTHORIZED = "it is not done, and answered with 401"
    FORBIDDEN = "it is not done, and answered with 403"


_AFTER: Final = frozenset({LeaseFault.HANG_AFTER, LeaseFault.BREAK_AFTER, LeaseFault.FAIL_AFTER})
_STATUS: Final = {
    LeaseFault.FAIL: (500, "InternalError"),
    LeaseFault.FAIL_AFTER: (500, "InternalError"),
    LeaseFault.BUSY: (429, "TooManyRequests"),
    LeaseFault.UNAUTHORIZED: (401, "Unauthorized"),
    LeaseFault.FORBIDDEN: (403, "Forbidden"),
}


class LeaseServer:
    """One API server and its store. `lag_s` is how far its cache and watches are behind.

    `faults` are of the next requests, in their order, for each method ("GET", "POST", "PATCH", "WATCH");
    `chance` gives random ones. `requests` are method and query of all that came.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.port = free_port()
        self.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{self.port}"
        self._tls = tls
        self.token = TOKEN
        self.lag_s = 0.0
        self.faults: dict[str, list[LeaseFault]] = {}
        self.chance: Callable[[str], LeaseFault | None] = lambda method: None
        self.before: Callable[[str], Awaitable[None]] | None = None
        """Awaited with the method of a request before it is done."""
        self.requests: list[tuple[str, dict[str, str]]] = []
        self._objects: dict[str, Lease] = {}
        self._revision = 100
        self._events: list[tuple[float, int, str, Lease]] = []
        self._changed = asyncio.Event()
        self._runner: web.AppRunner | None = None

    # What tests do.

    async def start(self) -> None:
        """Serve what it has, at the same port each time."""
        # Reading the schema takes a while, the first time, that no call shall wait for.
        _fault_of({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {}})
        app = web.Application()
        app.router.add_get(API, self._serve)
        app.router.add_post(API, self._serve)
        app.router.add_get(f"{API}/{{name}}", self._serve)
        app.router.add_patch(f"{API}/{{name}}", self._serve)
        self._runner = web.AppRunner(app, shutdown_timeout=0.05)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True, ssl_context=self._tls)
        await site.start()

    async def stop(self) -> None:
        """Break all connections; what it has stays."""
        assert self._runner is not None
        await self._runner.cleanup()
        self._runner = None

    async def end(self) -> None:
        if self._runner is not None:
            await self.stop()

    def count(self, method: str) -> int:
        return sum(each == method for each, _ in self.requests)

    @property
    def names(self) -> list[str]:
        return list(self._objects)

    def stored(self, name: str) -> Lease:
        """A copy of an object."""
        return copy.deepcopy(self._objects[name])

    def edit(self, name: str, change: Callable[[Lease], None]) -> None:
        """Change an object as `kubectl edit` does; it is made when there is none."""
        lease = copy.deepcopy(
            self._objects.get(name)
            or {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": name},
                "spec": {},
            }
        )
        lease["metadata"].setdefault("annotations", {})
        change(lease)
        self._store(name, lease, "MODIFIED" if name in self._objects else "ADDED")

    def delete(self, name: str) -> None:
        self._revision += 1
        self._tell("DELETED", self._objects.pop(name))

    def forget_events(self) -> None:
        """Let watches that begin in the past fail, as after a compaction."""
        self._events.clear()

    # What a server does.

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        method = "WATCH" if request.query.get("watch") else request.method
        self.requests.append((method, dict(request.query)))
        if self.before is not None:
            await self.before(method)
        line = self.faults.get(method, [])
        fault = line.pop(0) if line else self.chance(method)
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            fault = LeaseFault.UNAUTHORIZED
        if fault is not None and fault not in _AFTER:
            return await self._spoil(request, fault)
        if request.match_info["namespace"] != NAMESPACE:
            return _status(404, "NotFound", "namespaces", "there is no such namespace")
        answer = await self._done(method, request)
        return await self._spoil(request, fault) if fault is not None else answer

    async def _done(self, method: str, request: web.Request) -> web.StreamResponse:
        name = request.match_info.get("name", "")
        match method:
            case "GET":
                return self._read(name, request.query.get("resourceVersion"))
            case "POST":
                return self._create(await request.json())
            case "PATCH":
                assert "merge-patch+json" in request.content_type
                return self._patch(name, await request.json())
            case _:
                return await self._watch(request)

    async def _spoil(self, request: web.Request, fault: LeaseFault) -> web.StreamResponse:
        if fault in (LeaseFault.HANG, LeaseFault.HANG_AFTER):
            await asyncio.sleep(30)
        if fault in _STATUS:
            status, reason = _STATUS[fault]
            return _status(status, reason, "leases", fault.value)
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    def _read(self, name: str, resource_version: str | None) -> web.Response:
        if resource_version is None:
            lease = self._objects.get(name)
        else:
            # Any version will do: that of a cache, which is behind.
            until = asyncio.get_running_loop().time() - self.lag_s
            seen = [each for each in self._events if each[0] <= until and each[3]["metadata"]["name"] == name]
            lease = seen[-1][3] if seen and seen[-1][2] != "DELETED" else None
        if lease is None:
            return _status(404, "NotFound", "leases", f'leases "{name}" not found')
        return web.json_response(lease)

    def _create(self, lease: Lease) -> web.Response:
        name = lease["metadata"]["name"]
        if name in self._objects:
            return _status(409, "AlreadyExists", "leases", f'leases "{name}" already exists')
        if fault := _fault_of(lease):
            return _status(422, "Invalid", "leases", fault)
        lease["metadata"] |= {"namespace": NAMESPACE, "uid": str(uuid.uuid4())}
        return web.json_response(self._store(name, lease, "ADDED"), status=201)

    def _patch(self, name: str, patch: Lease) -> web.Response:
        known = self._objects.get(name)
        if known is None:
            return _status(404, "NotFound", "leases", f'leases "{name}" not found')
        # Without a version a patch is good for any; then it would not be one of ours.
        wanted = patch["metadata"].get("resourceVersion")
        assert wanted, "a patch without a resourceVersion"
        if wanted != known["metadata"]["resourceVersion"]:
            return _status(409, "Conflict", "leases", "the object has been modified")
        lease = _merged(known, patch)
        if fault := _fault_of(lease):
            return _status(422, "Invalid", "leases", fault)
        return web.json_response(self._store(name, lease, "MODIFIED"))

    def _store(self, name: str, lease: Lease, kind: str) -> Lease:
        self._revision += 1
        lease["metadata"]["resourceVersion"] = str(self._revision)
        self._objects[name] = lease
        self._tell(kind, lease)
        return lease

    def _tell(self, kind: str, lease: Lease) -> None:
        now = asyncio.get_running_loop().time()
        self._events.append((now, self._revision, kind, copy.deepcopy(lease)))
        del self._events[:-EVENTS_MAX]
        self._changed.set()
        self._changed = asyncio.Event()

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        clock = asyncio.get_running_loop().time
        end = clock() + float(request.query.get("timeoutSeconds", 300))
        selector = request.query["fieldSelector"].removeprefix("metadata.name=")
        told = int(request.query["resourceVersion"])
        response = web.StreamResponse()
        await response.prepare(request)
        if told < self._revision and not any(each[1] <= told + 1 for each in self._events):
            gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
            await response.write(json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n")
            return response
        while clock() < end:
            changed = self._changed
            due = [each for each in self._events if each[1] > told]
            for at, revision, kind, lease in due:
                if at + self.lag_s > clock():
                    break
                told = revision
                if lease["metadata"]["name"] == selector:
                    await response.write(json.dumps({"type": kind, "object": lease}).encode() + b"\n")
            waits = [each[0] + self.lag_s for each in self._events if each[1] > told]
            try:
                async with asyncio.timeout_at(min([end, *waits])):
                    await changed.wait()
            except TimeoutError:
                continue
        return response


@asynccontextmanager
async def lease_server(tls: ssl.SSLContext | None = None) -> AsyncIterator[LeaseServer]:
    """A server that runs; ended with the context."""
    server = LeaseServer(tls)
    await server.start()
    try:
        yield server
    finally:
        await server.end()


def kubeconfig(server: LeaseServer, token: str = TOKEN) -> str:
    """The text of a file by which a client finds the server."""
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": server.url}}],
            "users": [{"name": "test", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }
    )


def at_random(seed: int, share: float) -> Callable[[str], LeaseFault | None]:
    """Faults of all kinds for a share of the requests, the same for each seed."""
    chance = random.Random(seed)
    kinds = [each for each in LeaseFault if each not in (LeaseFault.UNAUTHORIZED, LeaseFault.FORBIDDEN)]
    return lambda _: chance.choice(kinds) if chance.random() < share else None


def _merged(target: Lease, patch: Lease) -> Lease:
    """RFC 7396, which for maps of maps is what a strategic merge is."""
    merged = copy.deepcopy(target)
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            merged[key] = _merged(merged.get(key, {}), value)
        else:
            merged[key] = value
    return merged


def _fault_of(lease: Lease) -> str:
    """What the server has against an object; "" = nothing."""
    try:
        kubernetes_validate.validate(lease, kubernetes_validate.latest_version(), strict=True)
    except kubernetes_validate.ValidationError as error:
        return str(error)
    annotations = lease["metadata"].get("annotations", {})
    if not all(isinstance(value, str) for value in annotations.values()):
        return "metadata.annotations: a value is no string"
    if sum(len(key) + len(value) for key, value in annotations.items()) > 256 << 10:
        return "metadata.annotations: more than 262144 bytes"
    spec = lease.get("spec", {})
    if not all(re.fullmatch(MICRO_TIME, spec[key]) for key in ("renewTime", "acquireTime") if key in spec):
        return "spec: a time is no MicroTime"
    if spec.get("leaseDurationSeconds", 1) <= 0:
        return "spec.leaseDurationSeconds: must be greater than 0"
    return ""


def _status(code: int, reason: str, kind: str, message: str) -> web.Response:
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason}
    headers = {"Retry-After": "1"} if code == 429 else {}
    return web.json_response(
        status | {"message": message, "details": {"kind": kind}}, status=code, headers=headers
    )
