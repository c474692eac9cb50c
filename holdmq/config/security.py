"""The section of the configuration that says who may use what, and under which names."""

from __future__ import annotations

from pydantic import Field, field_validator

from holdmq.config.section import Section, is_loopback
from holdmq.errors import ConfigError
from holdmq.service.host_rule import is_host_name


class SecuritySection(Section):
    """Configure access to the RPC of registry and broker, its TLS, and the names of this installation."""

    allow_anonymous: bool | None = Field(
        None,
        description="Admit connections without credentials, to everything; unset = only while the listener "
        "is on a loopback address and neither keys_file nor tls_client_ca is set.",
    )
    keys_file: str = Field(
        "", description="TOML file of access keys (holdmq key create); empty = there are none."
    )
    tls_cert: str = Field(
        "", description="PEM file of the listeners' certificate and its chain; empty = no TLS."
    )
    tls_key: str = Field("", description="PEM file of the key of tls_cert, readable by its owner only.")
    tls_client_ca: str = Field(
        "",
        description="PEM file of the authorities that sign clients' certificates; empty = none is asked for.",
    )
    require_client_certificate: bool = Field(
        False, description="Refuse TLS without a client certificate, whatever access key there is."
    )
    certificate_roles: list[str] = Field(
        [],
        description="Roles (client, reader, broker, service, admin) of client certificates that no entry of "
        "keys_file names; empty = they admit nobody, so that each is named on purpose.",
    )
    hosts: list[str] = Field(
        [],
        description="Names under which HTTP and WebSocket ports may be asked, as gw.example.org or "
        "*.example.org, beside addresses, localhost and names in other keys (docs/listeners.md): any other "
        "may be a web page's that has it point here, and is refused with 421.",
    )
    reload_interval_s: float = Field(
        5, gt=0, le=3600, description="How often the files are looked at for changes; SIGHUP does it at once."
    )
    unauthenticated_max: int = Field(
        2_000,
        ge=4,
        le=100_000,
        description="Connections of a listener that have not said HELLO, a quarter of them from one address; "
        "past it the oldest makes room, as who has credentials is done with it at once.",
    )

    @field_validator("hosts")
    @classmethod
    def _are_host_names(cls, value: list[str]) -> list[str]:
        for host in value:
            if not is_host_name(host):
                raise ValueError(
                    f"{host!r} is no host name without a port, as gw.example.org; * stands for one label "
                    "before two or more, as *.example.org; IP addresses need no entry"
                )
        return value

    def anonymous_allowed(self, section: str, bind: str) -> bool:
        """Return whether the RPC of `section` (registry, broker) on `bind` admits who shows no credentials.

        Raises ConfigError when keys of [security] do not go together, nobody could connect, or it would
        listen beyond loopback without credentials and without an explicit choice.
        """
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ConfigError("security.tls_cert and security.tls_key belong together: set both or none")
        if (self.tls_client_ca or self.require_client_certificate) and not self.tls_cert:
            raise ConfigError("security.tls_client_ca needs TLS: set security.tls_cert and security.tls_key")
        if self.require_client_certificate and not self.tls_client_ca:
            raise ConfigError(
                "security.require_client_certificate needs security.tls_client_ca to check them"
            )
        has_credentials = bool(self.keys_file or self.tls_client_ca)
        if self.allow_anonymous is not None:
            if not self.allow_anonymous and not has_credentials:
                raise ConfigError(
                    "security.allow_anonymous is false, but nobody could connect: set security.keys_file, "
                    "security.tls_client_ca or both"
                )
            return self.allow_anonymous
        if has_credentials:
            return False
        if is_loopback(bind):
            return True
        raise ConfigError(
            f"{section}.bind is {bind}, which other machines can reach, but there are no credentials; set "
            "security.keys_file (holdmq key create) or security.tls_client_ca, or set "
            "security.allow_anonymous to true to give everything to everybody who can reach the port"
        )
