"""etcd's JSON gateway: calls to one of several members, with TLS, a user, and a bound for each.

A member that fails goes to the end of the line. What may be sent twice goes to the next one then; what may
not is unknown, and raised. A call that etcd refuses has an outcome: it was not done.

Source: etcd's documentation, "gRPC gateway" (dev-guide/api_grpc_gateway) and rpc.proto; codes of gRPC.
"""

from __future__ import annotations

import asyncio
import json
import math
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import aiohttp

from holdmq.errors import ConfigError, CoordinatorError
from holdmq.files.private_file import read_private
from holdmq.rpc.tls import ClientTlsKeys, client_context

T = TypeVar("T")

ANSWER_MAX_BYTES: Final = 4 << 20
"""An answer: etcd's largest request is 1.5 MiB by default, a third more as base64."""
CONNECTIONS_MAX: Final = 16
"""Connections of one replica to all members together: a call of each kind, and a wait, at each of several."""
PASSWORD_FILE_MAX_BYTES: Final = 64 << 10
"""A file of one password, which is a line."""
TLS_READ_INTERVAL_S: Final = 1.0
"""How often the files of TLS are read again at most, while connections fail."""
_TLS_CLOSE_S: Final = 0.1
_TLS_KEYS: Final = ClientTlsKeys(
    "coordination.etcd.tls_ca", "coordination.etcd.tls_cert", "coordination.etcd.tls_key"
)

_INVALID_ARGUMENT, _NOT_FOUND, _PERMISSION_DENIED, _EXHAUSTED = 3, 5, 7, 8
_FAILED_PRECONDITION, _UNAUTHENTICATED = 9, 16
_HINTS: Final = {
    _INVALID_ARGUMENT: "look at coordination.etcd.user and its password",
    _PERMISSION_DENIED: "give coordination.etcd.user readwrite on all keys of coordination.etcd.prefix",
    _EXHAUSTED: "etcd is out of space: compact and defragment it, then disarm its alarm",
    _FAILED_PRECONDITION: "users of etcd are off (auth enable): unset coordination.etcd.user",
    _UNAUTHENTICATED: "set coordination.etcd.user and its password",
}
_UNREACHABLE: Final = "look after etcd, and whether coordination.etcd.urls are its members"
_REFUSALS: Final = frozenset({*_HINTS, _NOT_FOUND})
"""Codes by which etcd says that it has not done what it was asked for; after all others nobody knows."""


@dataclass(frozen=True, slots=True)
class EtcdAccess:
    """Where etcd's members are and what to show them.

    `urls` are those of clients, one or more of `https://host:2379` or http. `user` "" = none; its password is
    `password` or the one line of `password_file`, which is read at each login. `tls_ca` "" = the system's
    authorities, `tls_cert` "" = no client certificate.
    """

    urls: tuple[str, ...]
    user: str = ""
    password: str = field(default="", repr=False)
    password_file: str = ""
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""


class EtcdAnswer(NamedTuple):
    """What a member answered, and which one."""

    fields: dict[str, Any]
    member: str

    def parsed(self, operation: str, parse: Callable[[dict[str, Any]], T]) -> T:
        """What `parse` makes of the fields; CoordinatorError when they are not those of such an answer."""
        try:
            return parse(self.fields)
        except (ValueError, AttributeError, TypeError, LookupError) as error:
            raise CoordinatorError(
                f"{self.member} answers what no etcd does ({type(error).__name__}: {error})",
                operation=operation,
                hint=_UNREACHABLE,
            ) from error


class EtcdRefusalError(CoordinatorError):
    """etcd refused a call: it was not done. `grpc_code` says why."""

    def __init__(self, message: str, *, operation: str, grpc_code: int) -> None:
        super().__init__(message, operation=operation, hint=_HINTS.get(grpc_code, ""))
        self.grpc_code = grpc_code

        self._text = message

    @property
    def is_not_found(self) -> bool:
        """Whether the lease that the call names is gone."""
        return self.grpc_code == _NOT_FOUND

    @property
    def is_of_token(self) -> bool:
        """Whether it was the token, and a new one helps."""
        return self.grpc_code == _UNAUTHENTICATED or "revision of auth store is old" in self._text


class EtcdWatch:
    """A watch that a member has begun; whoever has it closes it."""

    def __init__(self, response: aiohttp.ClientResponse, open_watches: set[EtcdWatch]) -> None:
        self._response = response
        self._open_watches = open_watches
        open_watches.add(self)

    async def event(self) -> None:
        """Wait until something changed, or the watch ended: with its member, its leader, or the client."""
        with suppress(aiohttp.ClientError):
            await self._response.content.readany()

    def interrupt(self) -> None:
        """Have `event` return, whatever it waits for."""
        self._response.content.set_exception(aiohttp.ClientConnectionError("the client is closed"))

    def close(self) -> None:
        """End it, and its connection."""
        self._open_watches.discard(self)
        self._response.close()


class _MemberFailure(Exception):
    """A member gave no answer that tells anything; `was_sent` False: it cannot have got the call."""

    def __init__(self, message: str, *, was_sent: bool = True) -> None:
        super().__init__(message)
        self.was_sent = was_sent


class EtcdGateway:
    """Calls to etcd, each to one member. The constructor reads the files of TLS: ConfigError.

    `until_s` of each call is a moment of the event loop's clock; several calls of one purpose share it.
    """

    def __init__(self, access: EtcdAccess) -> None:
        self._access = access
        self._members = deque(url.rstrip("/") for url in access.urls)
        self._uses_tls = any(url.startswith("https:") for url in access.urls)
        self._context = self._build_context() if self._uses_tls else None
        self._tls_read_s = -math.inf
        self._session: aiohttp.ClientSession | None = None
        self._watches: set[EtcdWatch] = set()
        self._token = ""
        self._login = asyncio.Lock()
        self._is_closed = False

    async def call(
        self,
        operation: str,
        path: str,
        body: dict[str, Any],
        until_s: float,
        *,
        is_repeatable: bool,
        member: str = "",
    ) -> EtcdAnswer:
        """POST `body` to `path` of a member, or of that `member` and no other, and give the answer.

        `is_repeatable`: sent to two members it does the same as to one. Raises CoordinatorError; that is an
        EtcdRefusalError when it is certain that the call was not done.
        """
        failures: list[str] = []
        members = [member] if member else list(self._members)
        for number, each in enumerate(members):
            left = len(members) - number if is_repeatable else 1
            try:
                async with self._share(until_s, left):
                    return EtcdAnswer(await self._ask(operation, each, path, body), each)
            except TimeoutError:
                failure = _MemberFailure("no answer in time")
            except _MemberFailure as raised:
                failure = raised
            self._demote(each)
            failures.append(f"{each}: {failure}")
            if failure.was_sent and not is_repeatable:
                break
        raise CoordinatorError("; ".join(failures), operation=operation, hint=_UNREACHABLE)

    async def watch(self, operation: str, create: dict[str, Any], until_s: float) -> EtcdWatch:
        """Begin a watch with etcd's `create_request` at some member: of all changes after this returns.

        Raises CoordinatorError.
        """
        failures: list[str] = []
        members = list(self._members)
        for number, member in enumerate(members):
            try:
                async with self._share(until_s, len(members) - number):
                    return await self._watch_at(operation, member, create)
            except TimeoutError:
                failures.append(f"{member}: no answer in time")
            except _MemberFailure as failure:
                failures.append(f"{member}: {failure}")
            self._demote(member)
        raise CoordinatorError("; ".join(failures), operation=operation, hint=_UNREACHABLE)

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called: every call fails from then on."""
        return self._is_closed

    async def close(self) -> None:
        """End all connections; calls that are under way raise CoordinatorError."""
        self._is_closed = True
        for watch in list(self._watches):
            watch.interrupt()
        if self._session is not None:
            await self._session.close()
            if self._uses_tls:
                # Connections of TLS end in later turns of the loop, of which there may be no more.
                await asyncio.sleep(_TLS_CLOSE_S)

    def _share(self, until_s: float, members: int) -> asyncio.Timeout:
        """The time of one of `members` attempts that must all fit before `until_s`."""
        now_s = asyncio.get_running_loop().time()
        return asyncio.timeout_at(now_s + max(until_s - now_s, 0) / members)

    def _demote(self, member: str) -> None:
        """Ask this one last from now on."""
        if member == self._members[0]:
            self._members.rotate(-1)

    async def _ask(self, operation: str, member: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Give the answer of this member; log in if there is a user, again if that was forgotten."""
        token = await self._current_token(operation, member)
        try:
            return await self._answer(operation, member, path, body, token)
        except EtcdRefusalError as refusal:
            if not token or not refusal.is_of_token:
                raise
        token = await self._other_token(operation, member, token)
        return await self._answer(operation, member, path, body, token)

    async def _watch_at(self, operation: str, member: str, create: dict[str, Any]) -> EtcdWatch:
        token = await self._current_token(operation, member)
        try:
            response = await self._begin_watch(operation, member, create, token)
        except (EtcdRefusalError, _MemberFailure):
            # Of a watch that a token forbids etcd says so in several ways, one of which names no reason.
            if not token:
                raise
            token = await self._other_token(operation, member, token)
            response = await self._begin_watch(operation, member, create, token)
        return EtcdWatch(response, self._watches)

    async def _other_token(self, operation: str, member: str, old: str) -> str:
        """Log in anew: a token ends with its time, a restart of its member, or a change of users."""
        if self._token == old:
            self._token = ""
        return await self._current_token(operation, member)

    async def _current_token(self, operation: str, member: str) -> str:
        if not self._access.user or self._token:
            return self._token
        async with self._login:
            if not self._token:
                password = await asyncio.to_thread(self._read_password)
                body = {"name": self._access.user, "password": password}
                answer = await self._answer(operation, member, "/v3/auth/authenticate", body, "")
                self._token = str(answer.get("token", ""))
            return self._token

    def _read_password(self) -> str:
        if not self._access.password_file:
            return self._access.password
        path = Path(self._access.password_file)
        try:
            raw = read_private(path, "coordination.etcd.password_file", PASSWORD_FILE_MAX_BYTES)
        except ConfigError as error:
            raise _MemberFailure(str(error), was_sent=False) from error
        return raw.decode(errors="replace").strip()

    async def _answer(
        self, operation: str, member: str, path: str, body: dict[str, Any], token: str
    ) -> dict[str, Any]:
        response = await self._post(member, path, body, token)
        try:
            data = await _read_bounded(response)
        except aiohttp.ClientError as error:
            raise _MemberFailure(_broken(error)) from error
        finally:
            response.release()
        return _fields_of(operation, response.status, data)

    async def _begin_watch(
        self, operation: str, member: str, create: dict[str, Any], token: str
    ) -> aiohttp.ClientResponse:
        response = await self._post(member, "/v3/watch", {"create_request": create}, token)
        try:
            fields = _fields_of(operation, response.status, await response.content.readline())
            if not fields.get("created") or fields.get("canceled"):
                raise _MemberFailure(f"the watch did not begin: {fields.get('cancel_reason', '')!s:.200}")
        except (aiohttp.ClientError, ValueError) as error:
            response.close()
            raise _MemberFailure(_broken(error)) from error
        except BaseException:
            response.close()
            raise
        return response

    async def _post(self, member: str, path: str, body: dict[str, Any], token: str) -> aiohttp.ClientResponse:
        if self._is_closed:
            raise _MemberFailure("this client is closed", was_sent=False)
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=CONNECTIONS_MAX),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=None, sock_read=None),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        # A member without a leader ends a watch that wants one, instead of holding it silently.
        headers = {"Grpc-Metadata-hasleader": "true"}
        if token:
            headers["Authorization"] = token
        try:
            return await self._session.post(
                f"{member}{path}",
                data=json.dumps(body).encode(),
                headers=headers,
                ssl=self._context if self._context is not None else True,
                allow_redirects=False,
            )
        except aiohttp.ClientConnectorError as error:
            await self._read_tls_again()
            raise _MemberFailure(str(error), was_sent=False) from error
        except (aiohttp.ClientError, OSError) as error:
            await self._read_tls_again()
            raise _MemberFailure(_broken(error)) from error
        except RuntimeError as error:
            if not self._is_closed:
                raise
            raise _MemberFailure("this client is closed") from error

    async def _read_tls_again(self) -> None:
        """Take files that were renewed: TLS 1.3 may refuse an old certificate only later."""
        now_s = asyncio.get_running_loop().time()
        if self._context is None or now_s < self._tls_read_s + TLS_READ_INTERVAL_S:
            return
        self._tls_read_s = now_s
        try:
            self._context = await asyncio.to_thread(self._build_context)
        except ConfigError as error:
            raise _MemberFailure(str(error), was_sent=False) from error

    def _build_context(self) -> ssl.SSLContext:
        access = self._access
        return client_context(access.tls_ca, access.tls_cert, access.tls_key, _TLS_KEYS)


def _broken(error: Exception) -> str:
    return f"the connection broke: {str(error) or type(error).__name__}"


async def _read_bounded(response: aiohttp.ClientResponse) -> bytes:
    data = bytearray()
    async for part in response.content.iter_any():
        data += part
        if len(data) > ANSWER_MAX_BYTES:
            response.close()
            raise _MemberFailure(f"an answer of more than {ANSWER_MAX_BYTES} bytes")
    return bytes(data)


def _fields_of(operation: str, status: int, data: bytes) -> dict[str, Any]:
    """The answer of a call, or the first of a stream, without what the gateway wraps around it.

    Raises EtcdRefusalError when it says that the call was not done, _MemberFailure when it says anything
    else.
    """
    try:
        fields = json.loads(data)
        fields = fields.get("result", fields)
        fault = fields.get("error", fields if status != 200 else None)
        if fault is None:
            return dict(fields)
        # A stream's error is an object; that of a call is the answer itself, beside a text in older releases.
        detail = fault if isinstance(fault, dict) else fields
        message = str(detail.get("message") or fault)[:500]
        grpc_code = int(detail["code"] if "code" in detail else detail["grpc_code"])
    except (ValueError, AttributeError, TypeError, KeyError, RecursionError) as error:
        raise _MemberFailure(f"HTTP {status}, which is no answer of etcd's gateway") from error
    if grpc_code in _REFUSALS:
        raise EtcdRefusalError(message, operation=operation, grpc_code=grpc_code)
    raise _MemberFailure(message)
