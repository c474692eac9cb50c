"""Whether a configuration of access can be used: for who starts a gateway, and for `holdmq config check`."""

from __future__ import annotations

from gateway.access.files import files_of
from gateway.access.plugins import check_plugins
from holdmq.config.model import Config
from holdmq.errors import ConfigError


def check_access(config: Config) -> None:
    """Read the files, find the plug-ins (blocking).

    Raises ConfigError naming file, line, user or plug-in, or when clients must say who they are, and nobody
    could tell.
    """
    section = config.access
    for path, read in files_of(section):
        read(path)
    kinds = check_plugins(section.plugins)
    if section.anonymous_allowed(config.gateway) or any(kind.authenticates for kind in kinds):
        return
    if section.plugins and not (section.password_file or section.scram_file or section.certificates):
        raise ConfigError(
            "none of access.plugins authenticates clients, so that nobody could connect: add one that does, "
            "or set gateway.allow_anonymous to true"
        )
