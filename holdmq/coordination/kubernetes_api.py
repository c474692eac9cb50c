"""The Kubernetes API as far as one object of the kind Lease goes: get, create, patch and watch.

Objects are JSON, not the client's models, which drop what only newer servers know.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import aiohttp
from kubernetes_asyncio import client
from kubernetes_asyncio.config import ConfigException, load_incluster_config, load_kube_config

from holdmq.coordination.lease_object import LeaseFields
from holdmq.errors import ConfigError, CoordinatorError

NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
ANSWER_MAX_BYTES: Final = 2 << 20
"""An object: annotations have 256 KiB at most, and all of it 1.5 MiB, as etcd takes no more."""
CONNECTIONS_MAX: Final = 8
"""Connections of one replica: a call of each kind, and a wait."""
RETRY_AFTER_MAX_S: Final = 1.0
"""A server that is under pressure may ask for a pause; a longer one would outlast the call."""
_UNREACHABLE: Final = "look after the Kubernetes API, and whether network policies let brokers reach it"
_FORBIDDEN: Final = (
    "give the service account get, create, patch, list and watch on leases.coordination.k8s.io there"
)
_NO_NAMESPACE: Final = "create the namespace that coordination.kubernetes.namespace names"
_BUSY: Final = "the API is under pressure: look at its flow control (priority and fairness)"
_UNAUTHORIZED: Final = "look at the service account's token, or at coordination.kubernetes.kubeconfig"


@dataclass(frozen=True, slots=True)
class KubernetesAccess:
    """Where the API is and who asks.

    `kubeconfig` "" = from within the cluster, as the pod's service account; `namespace` "" = the pod's.
    """

    kubeconfig: str = ""
    namespace: str = ""


class ConflictError(Exception):
    """The object has changed since it was read, is gone, or there already: nothing was done."""


class LeaseWatch:
    """Changes of one object, as a server tells them; whoever has it closes it."""

    def __init__(self, response: aiohttp.ClientResponse, open_watches: set[LeaseWatch]) -> None:
        self._response = response
        self._open_watches = open_watches
        open_watches.add(self)

    async def event(self) -> LeaseFields | None:
        """Wait for the next change and give the object; None = something else happened: read it.

        After None there is nothing more to wait for.
        """
        with suppress(aiohttp.ClientError, ValueError, AttributeError):
            event = json.loads(await self._response.content.readline())
            if event.get("type") in ("ADDED", "MODIFIED"):
                return dict(event["object"])
        return None

    def interrupt(self) -> None:
        """Have `event` return, whatever it waits for."""
        self._response.content.set_exception(aiohttp.ClientConnectionError("the client is closed"))

    def close(self) -> None:
        """End it, and its connection."""
        self._open_watches.discard(self)
        self._response.close()


class LeaseApi:
    """Calls about one object. `until_s` of each is a moment of the event loop's clock."""

    def __init__(self, access: KubernetesAccess, name: str) -> None:
        self._access = access
        self._name = name
        self._namespace = access.namespace or _namespace_of_the_pod()
        self._client: client.ApiClient | None = None
        self._api: client.CoordinationV1Api | None = None
        self._connecting = asyncio.Lock()
        self._watches: set[LeaseWatch] = set()
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called: every call fails from then on."""
        return self._is_closed

    async def get(self, operation: str, until_s: float) -> LeaseFields | None:
        """Read the object, not older than this call; None = there is none.

        Without a resourceVersion, as here, servers ask the store and not their cache.
        """
        return await self._call(
            operation,
            until_s,
            lambda api: api.read_namespaced_lease(self._name, self._namespace, _preload_content=False),
            missing_is_none=True,
        )

    async def create(self, operation: str, lease: LeaseFields, until_s: float) -> None:
        """Create the object. Raises ConflictError when it is there."""
        await self._call(
            operation,
            until_s,
            lambda api: api.create_namespaced_lease(
                self._namespace, cast("client.V1Lease", lease), _preload_content=False
            ),
        )

    async def patch(self, operation: str, patch: LeaseFields, until_s: float) -> None:
        """Change the object of the resourceVersion that is in `patch`; ConflictError if it has another one.

        Not by a replacement: PUT may be repeated, and is, by the HTTP library and by proxies, when a
        connection breaks. The second one would meet what the first has done, and call it somebody else's.
        """
        await self._call(
            operation,
            until_s,
            lambda api: api.patch_namespaced_lease(
                self._name, self._namespace, patch, _preload_content=False
            ),
        )

    async def watch(self, operation: str, resource_version: str, wait_s: float, until_s: float) -> LeaseWatch:
        """Begin to watch the object, for `wait_s` at most: what changes after `resource_version` is told."""
        response = await self._send(
            operation,
            until_s,
            lambda api: api.list_namespaced_lease(
                self._namespace,
                field_selector=f"metadata.name={self._name}",
                resource_version=resource_version,
                timeout_seconds=max(int(wait_s), 1),
                watch=True,
                _preload_content=False,
            ),
        )
        if response.status == 200:
            return LeaseWatch(response, self._watches)
        response.close()
        raise CoordinatorError(f"a watch is refused with HTTP {response.status}", operation=operation)

    async def close(self) -> None:
        """End all connections; calls that are under way raise CoordinatorError."""
        self._is_closed = True
        for watch in list(self._watches):
            watch.interrupt()
        await self._disconnect()

    async def _call(
        self,
        operation: str,
        until_s: float,
        send: Callable[[client.CoordinationV1Api], Awaitable[object]],
        missing_is_none: bool = False,
    ) -> LeaseFields | None:
        """The object in an answer. What a server has surely not done is tried again before `until_s`."""
        has_connected_anew = False
        while True:
            response = await self._send(operation, until_s, send)
            try:
                async with asyncio.timeout_at(until_s):
                    data = await _read_bounded(response)
            except (TimeoutError, aiohttp.ClientError) as error:
                response.close()
                raise _unknown(operation, error) from error
            response.release()
            match response.status:
                case 200 | 201:
                    return _object_in(operation, data)
                case 404 if missing_is_none:
                    return None
                case 404 | 409 if _is_about_leases(data):
                    raise ConflictError
                case 401 if not has_connected_anew:
                    # A token that was renewed, and not read since.
                    has_connected_anew = True
                    await self._disconnect()
                case 429:
                    await self._wait(operation, response.headers.get("Retry-After", "1"), until_s)
                case status:
                    raise CoordinatorError(
                        f"HTTP {status}: {_message_in(data)}", operation=operation, hint=_hint_of(status)
                    )

    async def _send(
        self,
        operation: str,
        until_s: float,
        send: Callable[[client.CoordinationV1Api], Awaitable[object]],
    ) -> aiohttp.ClientResponse:
        try:
            async with asyncio.timeout_at(until_s):
                api = await self._connected(operation)
                return cast("aiohttp.ClientResponse", await send(api))
        except (TimeoutError, aiohttp.ClientError, OSError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not self._is_closed:
                raise
            if isinstance(error, ssl.SSLError | aiohttp.ClientSSLError):
                # Files of TLS are read when a client is made; they may have been renewed since.
                await self._disconnect()
            raise _unknown(operation, error) from error

    async def _wait(self, operation: str, retry_after: str, until_s: float) -> None:
        now_s = asyncio.get_running_loop().time()
        pause_s = min(float(retry_after) if retry_after.isdigit() else 1.0, RETRY_AFTER_MAX_S)
        if now_s + pause_s >= until_s:
            raise CoordinatorError("the API asks for a pause, HTTP 429", operation=operation, hint=_BUSY)
        await asyncio.sleep(pause_s)

    async def _connected(self, operation: str) -> client.CoordinationV1Api:
        async with self._connecting:
            if self._is_closed:
                raise CoordinatorError("this client is closed", operation=operation)
            if self._api is None:
                configuration = client.Configuration()
                try:
                    if self._access.kubeconfig:
                        await load_kube_config(
                            self._access.kubeconfig, client_configuration=configuration, persist_config=False
                        )
                    else:
                        load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
                except ConfigException as error:
                    raise CoordinatorError(str(error), operation=operation, hint=_UNAUTHORIZED) from error
                configuration.connection_pool_maxsize = CONNECTIONS_MAX
                # Authorities of clusters may lack extensions that Python 3.13 wants to see.
                configuration.disable_strict_ssl_verification = True
                self._client = client.ApiClient(configuration)
                self._api = client.CoordinationV1Api(self._client)
            return self._api

    async def _disconnect(self) -> None:
        made, self._client, self._api = self._client, None, None
        if made is not None:
            await made.close()


def _namespace_of_the_pod() -> str:
    try:
        return NAMESPACE_FILE.read_text().strip()
    except OSError:
        raise ConfigError(
            f"coordination.kubernetes.namespace is not set, and there is no {NAMESPACE_FILE} that says it: "
            "set it, as this process runs in no pod with a service account"
        ) from None


async def _read_bounded(response: aiohttp.ClientResponse) -> bytes:
    data = bytearray()
    async for part in response.content.iter_any():
        data += part
        if len(data) > ANSWER_MAX_BYTES:
            raise aiohttp.ClientPayloadError(f"an answer of more than {ANSWER_MAX_BYTES} bytes")
    return bytes(data)


def _unknown(operation: str, error: Exception) -> CoordinatorError:
    text = "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
    return CoordinatorError(text, operation=operation, hint=_UNREACHABLE)


def _object_in(operation: str, data: bytes) -> LeaseFields:
    try:
        fields = json.loads(data)
        if fields["kind"] == "Lease" and isinstance(fields["metadata"], dict):
            return dict(fields)
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    raise CoordinatorError("an answer that is no Lease", operation=operation, hint=_UNREACHABLE)


def _status_in(data: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) and fields.get("kind") == "Status" else {}


def _message_in(data: bytes) -> str:
    return str(_status_in(data).get("message", ""))[:500] or "without a reason"


def _is_about_leases(data: bytes) -> bool:
    """Whether an error is about an object of ours, and not about the namespace or from a proxy in between."""
    details = _status_in(data).get("details")
    return isinstance(details, dict) and details.get("kind") == "leases"


def _hint_of(status: int) -> str:
    return {401: _UNAUTHORIZED, 403: _FORBIDDEN, 404: _NO_NAMESPACE}.get(status, _UNREACHABLE)
