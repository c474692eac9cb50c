"""amqtt's plug-ins as they are: their classes checked, made, asked one after the other.

A plug-in believes that it is in amqtt's broker: its context is a BrokerContext without sessions, and who it
is asked about is an amqtt Session made for the question. Everything here but `check_plugins` runs on a thread
that asks (gateway.access.askers), never on the worker's event loop.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import logging
import ssl
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple, NoReturn

from holdmq.config.access import PluginSettings
from holdmq.errors import ConfigError, UsageError
from holdmq.names.tenants import tenant_fault
from holdmq.service import telemetry

PUBLISH: Final = "publish"
SUBSCRIBE: Final = "subscribe"
_START: Final = ("on_broker_pre_start", "on_broker_post_start")
_STOP: Final = ("on_broker_pre_shutdown", "on_broker_post_shutdown", "close")
PLUGINS_MAX: Final = 16
"""Plug-ins of a gateway: each is asked for every answer that is not known."""
CLOSE_S: Final = 2.0
"""How long a plug-in may take to close."""
_FAILS: Final = (Exception, asyncio.CancelledError, SystemExit)
"""What a plug-in may end with instead of an answer; what it cancels is its own affair."""

log = telemetry.get_logger()


class PluginClient(NamedTuple):
    """The client that asks to be let in, or to use a topic.

    `ssl_object` None = no TLS, or a proxy ended it; `common_name` is that of a verified certificate, or "".
    """

    client_id: str
    username: str | None
    password: bytes | None
    address: str
    port: int
    ssl_object: ssl.SSLObject | None
    common_name: str
    is_clean: bool
    keep_alive: int


class PluginKind(NamedTuple):
    """A class that was found, and what it can be asked."""

    settings: PluginSettings
    cls: Any
    config: Any
    authenticates: bool
    decides_on_topics: bool


class Authenticated(NamedTuple):
    """What plug-ins say of a client: `is_yes` None = nobody knows it.

    `is_named`: as the user whose name was given; `tenant`: whose it is, "" = nobody has said it.
    """

    is_yes: bool | None
    is_named: bool = False
    tenant: str = ""


class PluginFailure(Exception):
    """A plug-in gave no answer; `name` is its name."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(why)
        self.name = name


def check_plugins(settings: Sequence[PluginSettings]) -> list[PluginKind]:
    """Find the classes, and see whether their options fit. Raises ConfigError naming the plug-in."""
    if len(settings) > PLUGINS_MAX:
        raise ConfigError(f"a gateway has at most {PLUGINS_MAX} access.plugins")
    names = [plugin.shown for plugin in settings]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two access.plugins are named {name!r}: give each a name of its own")
    return [_check(at, plugin) for at, plugin in enumerate(settings)]


def _check(at: int, settings: PluginSettings) -> PluginKind:
    key = f"access.plugins[{at}] ({settings.shown})"
    try:
        from amqtt.plugins.base import BaseAuthPlugin, BaseTopicPlugin
    except ImportError as error:
        raise ConfigError(f"{key} needs amqtt ({error}): pip install 'holdmq[amqtt]'") from error
    path, _, name = settings.class_path.rpartition(".")
    try:
        cls = getattr(importlib.import_module(path), name, None)
    except ImportError as error:
        raise ConfigError(f"{key}: {path} cannot be imported: {error}") from error
    if cls is None:
        raise ConfigError(f"{key}: {path} has no class {name}")
    authenticates = inspect.isclass(cls) and issubclass(cls, BaseAuthPlugin)
    decides = inspect.isclass(cls) and issubclass(cls, BaseTopicPlugin)
    if not authenticates and not decides:
        raise ConfigError(f"{key}: {settings.class_path} is no BaseAuthPlugin and no BaseTopicPlugin")
    for method, is_asked in (("authenticate", authenticates), ("topic_filtering", decides)):
        if is_asked and not inspect.iscoroutinefunction(getattr(cls, method)):
            raise ConfigError(f"{key}: its {method} is no coroutine function")
    return PluginKind(settings, cls, _config_of(key, cls, settings.options), authenticates, decides)


def _config_of(key: str, cls: Any, options: dict[str, Any]) -> Any:
    """The options as the class's Config."""
    from dacite import Config as Rules
    from dacite import DaciteError, from_dict

    try:
        return from_dict(cls.Config, options, Rules(strict=True, cast=[Enum]))
    except (DaciteError, TypeError, ValueError) as error:
        raise ConfigError(f"{key}: its options do not fit: {error}") from error


class Plugins:
    """The plug-ins of one thread that asks, each an instance of its own."""

    def __init__(self, kinds: Sequence[PluginKind]) -> None:
        self._kinds = kinds
        self._made: list[tuple[str, Any]] = []
        self.entered = ""
        """The plug-in that was called last: if the thread stands still, it is the one."""

    async def start(self, timeout_s: float) -> None:
        """Make the plug-ins. Raises PluginFailure; what was made is closed then."""
        try:
            for kind in self._kinds:
                name = self.entered = kind.settings.shown
                try:
                    plugin = kind.cls(_context(kind))
                    self._made.append((name, plugin))
                    for hook in _START:
                        await _call(plugin, hook, timeout_s)
                except _FAILS as error:
                    raise PluginFailure(name, _told(error)) from error
        except PluginFailure:
            await self.close()
            raise

    async def close(self) -> None:
        """Tell the plug-ins that it is over."""
        while self._made:
            name, plugin = self._made.pop()
            for hook in _STOP:
                try:
                    await _call(plugin, hook, CLOSE_S)
                except _FAILS as error:  # the others end too
                    log.warning("a plug-in did not close", plugin=name, reason=_told(error))

    async def authenticate(self, client: PluginClient, timeout_s: float) -> Authenticated:
        """Ask who authenticates. One may set `tenant` of the session that it is asked about.

        As in amqtt, all that have an opinion must agree. Raises PluginFailure.
        """
        session = _session_of(client)
        if session is None:
            return Authenticated(False)
        answer: bool | None = None
        is_named = False
        tenant = ""
        for kind, (name, plugin) in zip(self._kinds, self._made, strict=True):
            if not kind.authenticates:
                continue
            session.is_anonymous = False
            session.tenant = None
            said = await self._ask(name, timeout_s, plugin.authenticate, session=session)
            if said is None:
                continue
            if not said:
                return Authenticated(False)
            answer = True
            is_named = is_named or not session.is_anonymous
            tenant = _one_tenant(name, tenant, session.tenant)
        return Authenticated(answer, is_named, tenant)

    async def allows(self, client: PluginClient, topic: str, action: str, timeout_s: float) -> bool:
        """Ask who decides on topics; all that have an opinion must agree, and one must have one.

        Raises PluginFailure.
        """
        from amqtt.contexts import Action

        session = _session_of(client)
        if session is None:
            return False
        is_allowed = False
        for kind, (name, plugin) in zip(self._kinds, self._made, strict=True):
            if kind.decides_on_topics:
                question = {"session": session, "topic": topic, "action": Action(action)}
                said = await self._ask(name, timeout_s, plugin.topic_filtering, **question)
                if said is not None and not said:
                    return False
                is_allowed = is_allowed or bool(said)
        return is_allowed

    async def _ask(
        self, name: str, timeout_s: float, method: Callable[..., Awaitable[Any]], **question: Any
    ) -> bool | None:
        self.entered = name
        try:
            async with asyncio.timeout(timeout_s):
                said = await method(**question)
        except TimeoutError as error:
            raise PluginFailure(name, f"no answer within {timeout_s:g} s") from error
        except _FAILS as error:
            raise PluginFailure(name, _told(error)) from error
        return None if said is None else bool(said)


def _one_tenant(name: str, before: str, said: object) -> str:
    """Whose a client is, as others said `before` and `name` says now. Raises PluginFailure if they differ."""
    if said is None or said == "":
        return before
    fault = tenant_fault(said) if isinstance(said, str) else f"a tenant is a text, not {type(said).__name__}"
    if fault is None and before and said != before:
        fault = f"another one has said that the client is {before}'s"
    if fault is not None:
        raise PluginFailure(name, fault)
    return str(said)


async def _call(plugin: Any, hook: str, timeout_s: float) -> None:
    method = getattr(plugin, hook, None)
    if method is not None:
        async with asyncio.timeout(timeout_s):
            await method()


def _context(kind: PluginKind) -> Any:
    """What a plug-in sees of its broker."""
    from amqtt.broker import BrokerContext

    class PluginContext(BrokerContext):  # type: ignore[misc]
        """A BrokerContext of a gateway, where plug-ins decide and do nothing else."""

        def __init__(self) -> None:
            self.loop = asyncio.get_running_loop()
            self.logger = logging.getLogger(f"holdmq.access.{kind.settings.shown}")
            self.config = kind.config

        sessions = property(lambda self: iter(()))
        retained_messages = property(lambda self: {})
        subscriptions = property(lambda self: {})

        def get_session(self, _client_id: str) -> None:
            return None

        def broadcast_message(self, *_: Any, **__: Any) -> NoReturn:
            raise UsageError(
                "a plug-in of HoldMQ's gateway decides on access and cannot send or subscribe: let a program "
                "of its own do that, with MQTT or holdmq.client"
            )

        retain_message = add_subscription = broadcast_message

    return PluginContext()


def _session_of(client: PluginClient) -> Any:
    """The session that a plug-in is asked about; None = the password is no text, which amqtt's have to be."""
    try:
        password = None if client.password is None else client.password.decode()
    except UnicodeDecodeError:
        return None
    pattern = _pattern()
    # Its constructor takes 1 ms, for a state machine and queues that nobody here uses.
    session = pattern.__class__.__new__(pattern.__class__)
    session.__dict__.update(pattern.__dict__)
    session.attributes = {}
    session.client_id = client.client_id
    session.username = client.username
    session.password = password
    session.remote_address = client.address
    session.remote_port = client.port
    session.ssl_object = client.ssl_object
    session.clean_session = client.is_clean
    session.keep_alive = client.keep_alive
    return session


@functools.cache
def _pattern() -> Any:
    from amqtt.session import Session

    return Session()


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
