from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import run_here

from holdmq.config.access import AccessSection
from holdmq.config.model import Config, GatewaySection
from holdmq.config.sources import load
from holdmq.errors import ConfigError

JWT = {
    "class_path": "amqtt.contrib.jwt.UserAuthJwtPlugin",
    "options": {"secret_key": "k" * 32, "user_claim": "u"},
}


def test_with_authentication_nobody_is_anonymous_unless_it_is_said() -> None:
    section = AccessSection(password_file="users")
    assert not section.anonymous_allowed(GatewaySection())
    assert not section.anonymous_allowed(GatewaySection(bind="0.0.0.0"))
    assert section.anonymous_allowed(GatewaySection(allow_anonymous=True))
    assert not AccessSection(certificates=True).anonymous_allowed(GatewaySection())
    assert not AccessSection(plugins=[JWT]).anonymous_allowed(GatewaySection())


def test_permissions_alone_leave_the_door_as_it_was() -> None:
    section = AccessSection(acl_file="acl")
    assert section.anonymous_allowed(GatewaySection())
    with pytest.raises(ConfigError, match="which other machines can reach"):
        section.anonymous_allowed(GatewaySection(bind="0.0.0.0"))


@pytest.mark.parametrize(
    ("toml", "what"),
    [
        (
            "passwords_file = 'x'",
            'unknown key "access.passwords_file" .* did you mean "access.password_file"',
        ),
        ("cache_age_s = -1", "greater than or equal to 0"),
        ("plugins = [{ options = {} }]", r'the key "access.plugins\[0\].class_path" is missing'),
        ("plugins = [{ class_path = 'nothing' }]", "is no path of a class, as package.module.Class"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, toml: str, what: str) -> None:
    path = tmp_path / "holdmq.toml"
    path.write_text(f"[access]\n{toml}\n")
    with pytest.raises(ConfigError, match=what):
        load(path, environ={})


def test_plugins_come_from_the_environment_as_json() -> None:
    config = load(environ={"HOLDMQ_ACCESS__PLUGINS": json.dumps([JWT | {"name": "jwt"}])})
    assert config.access.plugins[0].shown == "jwt"
    assert config.access.plugins[0].options["user_claim"] == "u"
    assert Config().access.is_used is False


def test_secrets_of_plugins_are_not_shown() -> None:
    flag = f"--set=access.plugins={json.dumps([JWT])}"
    shown = run_here("config", "show", flag)
    assert 'user_claim = "u"' in shown.stdout
    assert "kkkk" not in shown.stdout
    assert "kkkk" not in run_here("config", "show", "--json", flag).stdout


def test_check_says_whether_a_plugin_can_be_used(tmp_path: Path) -> None:
    good = run_here("config", "check", f"--set=access.plugins={json.dumps([JWT])}")
    assert good.returncode == 0, good.stderr
    bad = run_here(
        "config", "check", f"--set=access.plugins={json.dumps([{'class_path': 'amqtt.no.Plugin'}])}"
    )
    assert bad.returncode == 2
    assert "access.plugins[0] (Plugin): amqtt.no cannot be imported" in bad.stderr
    acl = tmp_path / "acl"
    acl.write_text("topic a/#\ntopic b/#/c\n")
    bad = run_here("config", "check", f"--set=access.acl_file={acl}")
    assert bad.returncode == 2
    assert "(access.acl_file), line 2:" in bad.stderr
