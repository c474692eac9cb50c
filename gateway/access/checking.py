"""Whether a configuration of access can be used: for who starts a gateway, and for `holdmq config check`."""

from __future__ import annotations

from pathlib import Path

from gateway.access.files import read_acl
from gateway.access.passwords import PasswordFile
from gateway.access.plugins import check_plugins
from gateway.access.scram_file import ScramFile
from holdmq.config import Config
from holdmq.errors import ConfigError


def check_access(config: Config) -> None:
    """Read the files, find the plug-ins (blocking). Raises ConfigError naming file, line, user or plug-in."""
    section = config.access
    if section.acl_file:
        read_acl(Path(section.acl_file))
    if section.password_file:
        PasswordFile.read(Path(section.password_file))
    if section.scram_file:
        ScramFile.read(Path(section.scram_file))
    kinds = check_plugins(section.plugins)
    check_somebody_authenticates(config, any(kind.authenticates for kind in kinds))


def check_somebody_authenticates(config: Config, plugins_authenticate: bool) -> None:
    """Raise ConfigError when clients must say who they are, and nobody could tell."""
    section = config.access
    if section.anonymous_allowed(config.gateway) or plugins_authenticate:
        return
    if section.plugins and not (section.password_file or section.scram_file or section.certificates):
        raise ConfigError(
            "none of access.plugins authenticates clients, so that nobody could connect: add one that does, "
            "or set gateway.allow_anonymous to true"
        )
