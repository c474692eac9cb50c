"""The section of the configuration that says which MQTT clients are admitted, and what they may do."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from pydantic import Field, field_serializer, field_validator

from holdmq.config.section import Section

if TYPE_CHECKING:
    from holdmq.config.model import GatewaySection

_PATH: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+\Z")
_SECRET: Final = re.compile(r"secret|password|passwd|token|credential|connection|(^|_)key\Z", re.IGNORECASE)


class PluginSettings(Section):
    """One of amqtt's plug-in classes, or of anybody else's who follows their interface."""

    name: str = Field(
        "",
        pattern=r"^[A-Za-z0-9_-]{0,64}$",
        description="Name in logs and errors; empty = the name of the class.",
    )
    class_path: str = Field(
        description="Python path of the class, as amqtt.contrib.jwt.UserAuthJwtPlugin: a BaseAuthPlugin, a "
        "BaseTopicPlugin or both."
    )
    options: dict[str, Any] = Field(
        {}, description="What the class takes as its Config: a table, whose keys are the plug-in's own."
    )

    @field_validator("class_path")
    @classmethod
    def _is_path(cls, value: str) -> str:
        if not _PATH.match(value):
            raise ValueError(f"{value!r} is no path of a class, as package.module.Class")
        return value

    @field_serializer("options")
    def _without_secrets(self, options: dict[str, Any]) -> dict[str, Any]:
        return {key: "**********" if _SECRET.search(key) else value for key, value in options.items()}

    @property
    def shown(self) -> str:
        """The name, for people."""
        return self.name or self.class_path.rpartition(".")[2]


class AccessSection(Section):
    """Which MQTT clients the gateway admits, and what each may publish and subscribe to (docs/access.md)."""

    password_file: str = Field(
        "", description="File of users and password hashes (holdmq passwd); empty = there is none."
    )
    scram_file: str = Field(
        "",
        description="File of users for SCRAM-SHA-256, enhanced authentication of MQTT 5 (holdmq passwd "
        "--scram); empty = it is not offered.",
    )
    rehash: bool = Field(
        True,
        description="Replace a user's hash in password_file when he logs in and it is weaker than those of "
        "holdmq passwd, if the file is the gateway's own; false for one that Mosquitto reads as well.",
    )
    certificates: bool = Field(
        False,
        description="Admit clients by the certificate that a listener verified, as the user that its common "
        "name says; a user name that they give as well must be the same.",
    )
    acl_file: str = Field(
        "",
        description="File of permissions, in lines as Mosquitto's; empty = every client that is admitted may "
        "publish and subscribe to everything but $SYS.",
    )
    tenants_file: str = Field(
        "",
        description="File that says which users are a tenant's, in lines user:tenant; empty = none is, but "
        "for those of whom a plug-in says it (docs/access.md).",
    )
    sys_topics: bool = Field(
        False,
        description="Without acl_file: clients may subscribe to $SYS, the gateway's own numbers.",
    )
    plugins: list[PluginSettings] = Field(
        [],
        description="amqtt's plug-ins, an array of tables (docs/access.md), asked in this order. A JSON "
        "array in the environment and --set.",
    )
    reload_interval_s: float = Field(
        5, gt=0, le=3600, description="How often the files are looked at for changes; SIGHUP does it at once."
    )
    cache_age_s: float = Field(
        600,
        ge=0,
        le=86_400,
        description="How long a plug-in's answer counts, for connects, topics and subscriptions in force: "
        "what a withdrawn permission may outlive, against load of who is asked. Files need no age.",
    )
    cache_refused_age_s: float = Field(
        10,
        ge=0,
        le=3600,
        description="The same for refusals: short, for who was just added comes again at once.",
    )
    cache_entries_max: int = Field(
        200_000,
        ge=100,
        le=10_000_000,
        description="Answers remembered by a worker, 0.3 KiB each: twice its connections.",
    )
    ask_timeout_s: float = Field(
        5,
        gt=0,
        le=60,
        description="How long one plug-in may take; then the client is refused, and the plug-in named.",
    )
    ask_threads: int = Field(
        0,
        ge=0,
        le=64,
        description="Threads of a worker that ask plug-ins, and as many that check passwords; 0 = one per "
        "core, at most 4: a check takes 20 to 40 ms of a core.",
    )
    asks_max: int = Field(
        20_000,
        ge=16,
        le=1_000_000,
        description="Questions to plug-ins in hand at a worker, 1 KiB each: a reconnect storm's; more are "
        "refused.",
    )
    password_checks_max: int = Field(
        4000,
        ge=4,
        le=1_000_000,
        description="Passwords that wait at a worker to be checked, 1 KiB each; one address may have as many "
        "as places are free: half of all while it is alone. More are refused: they would wait too long.",
    )

    @property
    def is_used(self) -> bool:
        """Whether anything is decided about clients at all."""
        return self.authenticates or bool(self.acl_file or self.tenants_file)

    @property
    def authenticates(self) -> bool:
        """Whether clients have to say who they are; of plug-ins it is not known here which of them ask."""
        return bool(self.password_file or self.scram_file or self.certificates or self.plugins)

    def anonymous_allowed(self, gateway: GatewaySection) -> bool:
        """Return whether MQTT clients without credentials are admitted.

        Raises ConfigError when the gateway would let everybody in beyond loopback, and nobody chose that.
        """
        if self.authenticates and gateway.allow_anonymous is None:
            gateway.all_listeners()
            return False
        return gateway.anonymous_allowed()
