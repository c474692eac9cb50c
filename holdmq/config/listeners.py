"""One listener of the MQTT gateway, as ``[[gateway.listeners]]`` describes it."""

from __future__ import annotations

import ipaddress
import re
from typing import Final, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from holdmq.config.section import Section, is_loopback

DEFAULT_LISTENER: Final = "default"
"""Name of the listener that gateway.bind and gateway.port describe."""
LISTENERS_MAX: Final = 32
"""Listeners of a gateway: each has metrics of its own, and a socket in every worker."""
UNIX_PATH_MAX_BYTES: Final = 107
"""sun_path of unix(7) without its final zero."""

_MODE: Final = re.compile(r"0?[0-7]{3}\Z")
_URL_PATH: Final = re.compile(r"/[\x21\x24-\x3e\x40-\x7e]*\Z")


class ListenerSettings(Section):
    """A listener beside the default one: what clients speak, where, and whom it trusts."""

    name: str = Field(
        pattern=r"^[a-z0-9_-]{1,32}$", description="Name in metrics, logs and errors, one of its kind."
    )
    kind: Literal["tcp", "tls", "ws", "wss", "unix"] = Field(
        description="tcp = MQTT as it is, tls = over TLS, ws = over WebSocket, wss = over WebSocket and TLS, "
        "unix = over a UNIX socket."
    )
    bind: str = Field(
        "127.0.0.1",
        description="Listening address; anything but loopback needs gateway.allow_anonymous set explicitly.",
    )
    port: int | None = Field(
        None, ge=0, le=65535, description="TCP port; needed for every kind but unix (8883 is usual for tls)."
    )
    path: str = Field("", description="File of the UNIX socket, in a directory that exists.")
    mode: str = Field(
        "0660", description="Permissions of the UNIX socket's file: owner and group may connect."
    )
    tls_cert: str = Field("", description="PEM file of the certificate and its chain; kinds tls and wss.")
    tls_key: str = Field("", description="PEM file of the key of tls_cert, readable by its owner only.")
    tls_client_ca: str = Field(
        "",
        description="PEM file of the authorities that sign clients' certificates; empty = none is asked for.",
    )
    require_client_certificate: bool = Field(
        False, description="Refuse clients that show no certificate; needs tls_client_ca."
    )
    ws_path: str = Field("/mqtt", description="Path of the WebSocket in the URL; kinds ws and wss.")
    ws_origins: list[str] = Field(
        [],
        description="Origins of web pages that may connect, as https://app.example; * = every one. Empty = "
        "pages of the host that is connected to. Clients that are no browsers need none.",
    )
    proxy: bool = Field(
        False,
        description="Every connection begins with a PROXY protocol header, v1 or v2, which says who the "
        "client is; one without it is closed.",
    )
    proxy_networks: list[str] = Field(
        [], description="Networks of the proxies, as 10.0.0.0/8; whoever else connects is closed."
    )

    @field_validator("mode")
    @classmethod
    def _is_octal(cls, value: str) -> str:
        if not _MODE.match(value):
            raise ValueError(f"{value!r} is no file mode of three octal digits, as 0660")
        return value

    @field_validator("ws_path")
    @classmethod
    def _is_url_path(cls, value: str) -> str:
        if not _URL_PATH.match(value):
            raise ValueError(f"{value!r} is no path of a URL: it begins with / and has no ?, # or space")
        return value

    @field_validator("ws_origins")
    @classmethod
    def _are_origins(cls, value: list[str]) -> list[str]:
        for origin in value:
            parts = urlsplit(origin)
            if origin != "*" and (not parts.netloc or f"{parts.scheme}://{parts.netloc}" != origin):
                raise ValueError(f"{origin!r} is no origin, as https://app.example or http://localhost:3000")
        return value

    @field_validator("proxy_networks")
    @classmethod
    def _are_networks(cls, value: list[str]) -> list[str]:
        for network in value:
            ipaddress.ip_network(network)
        return value

    @model_validator(mode="after")
    def _goes_together(self) -> ListenerSettings:
        if self.kind == "unix":
            self._check_unix()
        else:
            if self.port is None:
                raise ValueError(f"a listener of kind {self.kind} needs a port")
            self._refuse("kind = unix", path=self.path, mode=self.mode != "0660")
        if self.uses_tls:
            for key in ("tls_cert", "tls_key"):
                if not getattr(self, key):
                    raise ValueError(f"a listener of kind {self.kind} needs {key}")
            if self.require_client_certificate and not self.tls_client_ca:
                raise ValueError("require_client_certificate needs tls_client_ca to check them")
        else:
            self._refuse(
                "kind = tls or wss",
                tls_cert=self.tls_cert,
                tls_key=self.tls_key,
                tls_client_ca=self.tls_client_ca,
                require_client_certificate=self.require_client_certificate,
            )
        if not self.uses_websocket:
            self._refuse("kind = ws or wss", ws_path=self.ws_path != "/mqtt", ws_origins=self.ws_origins)
        if self.proxy and not self.proxy_networks:
            raise ValueError("proxy needs proxy_networks: anybody could say to be anybody")
        if not self.proxy:
            self._refuse("proxy = true", proxy_networks=self.proxy_networks)
        return self

    def _check_unix(self) -> None:
        if not self.path:
            raise ValueError("a listener of kind unix needs path")
        if len(self.path.encode()) > UNIX_PATH_MAX_BYTES:
            raise ValueError(f"path has more than the {UNIX_PATH_MAX_BYTES} bytes of a UNIX socket")
        if self.proxy:
            raise ValueError("proxy is not for UNIX sockets: who connects there has no address")
        self._refuse("another kind", port=self.port is not None, bind=self.bind != "127.0.0.1")

    @staticmethod
    def _refuse(needed: str, **given: object) -> None:
        """Refuse keys that would change nothing: who set them believes that they do."""
        for key, value in given.items():
            if value:
                raise ValueError(f"{key} is set, which is only for a listener with {needed}")

    @property
    def uses_tls(self) -> bool:
        return self.kind in ("tls", "wss")

    @property
    def uses_websocket(self) -> bool:
        return self.kind in ("ws", "wss")

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches it: not so behind a proxy, whose clients are anywhere."""
        return self.kind == "unix" or (is_loopback(self.bind) and not self.proxy)

    @property
    def where(self) -> str:
        """The address or the path, for people."""
        if self.kind == "unix":
            return self.path
        return f"[{self.bind}]:{self.port}" if ":" in self.bind else f"{self.bind}:{self.port}"

    @property
    def scheme(self) -> str:
        """How URLs of clients begin."""
        return {"tcp": "mqtt", "tls": "mqtts", "unix": "unix"}.get(self.kind, self.kind)


def conflict_of(listeners: list[ListenerSettings]) -> str | None:
    """Why these cannot be listeners of one gateway; None = they can."""
    if not listeners:
        return "gateway.default_listener is false and there are no gateway.listeners: nobody could connect"
    if len(listeners) > LISTENERS_MAX:
        return f"a gateway has at most {LISTENERS_MAX} listeners"
    names: set[str] = set()
    places: dict[tuple[str, int | str], str] = {}
    for listener in listeners:
        if listener.name in names:
            return f"two gateway.listeners are named {listener.name!r}: give each a name of its own"
        names.add(listener.name)
        if listener.port == 0:
            continue
        place = (listener.bind, listener.port) if listener.port is not None else ("unix", listener.path)
        other = places.setdefault(place, listener.name)
        if other != listener.name:
            return f"the listeners {other!r} and {listener.name!r} are both at {listener.where}"
    return None
