from __future__ import annotations

import pytest
from pydantic import ValidationError

from holdmq.config.model import BrokerSection, ClientSection, Config, GatewaySection, RegistrySection
from holdmq.config.section import is_loopback
from holdmq.config.security import SecuritySection
from holdmq.errors import ConfigError
from holdmq.service.host_rule import AllowedHosts


def test_the_defaults_are_the_ports_of_the_house() -> None:
    config = Config()
    ports = (config.registry.port, config.broker.port, config.gateway.port, config.console.port)
    assert ports == (9876, 10911, 1883, 8080)


def test_every_service_binds_loopback_unless_told() -> None:
    config = Config()
    for section in (config.registry, config.broker, config.gateway, config.console):
        assert is_loopback(section.bind)
        assert is_loopback(section.admin_bind)


def test_a_configuration_cannot_be_changed_once_it_is_read() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Config().registry.port = 1  # type: ignore[misc]


def test_anonymous_clients_are_admitted_on_loopback_and_refused_nowhere_in_silence() -> None:
    assert GatewaySection().anonymous_allowed()
    assert GatewaySection(bind="::1").anonymous_allowed()
    assert not GatewaySection(allow_anonymous=False).anonymous_allowed()
    assert GatewaySection(bind="0.0.0.0", allow_anonymous=True).anonymous_allowed()
    assert not GatewaySection(bind="0.0.0.0", allow_anonymous=False).anonymous_allowed()


@pytest.mark.parametrize("bind", ["0.0.0.0", "::", "192.168.1.7", "gateway.example"])
def test_a_gateway_that_others_can_reach_needs_an_explicit_choice(bind: str) -> None:
    with pytest.raises(ConfigError, match=r"gateway\.allow_anonymous is not set"):
        GatewaySection(bind=bind).anonymous_allowed()


def test_the_registries_are_those_given_or_the_one_of_this_machine() -> None:
    assert Config(registry=RegistrySection(port=5)).registries() == ["127.0.0.1:5"]
    assert Config(client=ClientSection(registries=["a:1", "b:2"])).registries() == ["a:1", "b:2"]


def test_workers_default_to_half_of_the_cores_and_obey_when_told() -> None:
    assert [GatewaySection().worker_count(cores) for cores in (1, 2, 3, 4, 16)] == [1, 1, 1, 2, 8]
    assert GatewaySection(workers=1).worker_count(16) == 1


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("::", False),
        ("h", False),
    ],
)
def test_loopback_is_told_from_what_others_can_reach(host: str, local: bool) -> None:
    assert is_loopback(host) is local


@pytest.mark.parametrize(
    ("bind", "security", "allowed"),
    [
        ("127.0.0.1", {}, True),
        ("127.0.0.1", {"keys_file": "k"}, False),
        ("127.0.0.1", {"keys_file": "k", "allow_anonymous": True}, True),
        ("0.0.0.0", {"keys_file": "k"}, False),
        ("0.0.0.0", {"tls_cert": "c", "tls_key": "k", "tls_client_ca": "ca"}, False),
        ("0.0.0.0", {"allow_anonymous": True}, True),
    ],
)
def test_the_rpc_is_open_to_all_on_loopback_or_when_told(
    bind: str, security: dict[str, object], allowed: bool
) -> None:
    config = Config(broker=BrokerSection(bind=bind), security=SecuritySection.model_validate(security))
    assert config.rpc_anonymous_allowed("broker") is allowed


@pytest.mark.parametrize(
    ("bind", "security", "problem"),
    [
        ("0.0.0.0", {}, "broker.bind is 0.0.0.0"),
        ("10.0.0.5", {"tls_cert": "c", "tls_key": "k"}, "there are no credentials"),
        ("127.0.0.1", {"allow_anonymous": False}, "nobody could connect"),
        ("127.0.0.1", {"tls_cert": "c"}, "belong together"),
        ("127.0.0.1", {"tls_client_ca": "ca"}, "needs TLS"),
        (
            "127.0.0.1",
            {"tls_cert": "c", "tls_key": "k", "require_client_certificate": True},
            "needs security.tls_client_ca",
        ),
    ],
)
def test_an_rpc_that_is_open_by_accident_or_to_nobody_is_refused(
    bind: str, security: dict[str, object], problem: str
) -> None:
    config = Config(broker=BrokerSection(bind=bind), security=SecuritySection.model_validate(security))
    with pytest.raises(ConfigError, match=problem):
        config.rpc_anonymous_allowed("broker")


def test_names_of_the_installation_are_those_that_its_keys_give() -> None:
    assert set(Config().host_names()) <= {"127.0.0.1"}
    config = Config.model_validate(
        {
            "security": {"hosts": ["gw.example.org", "*.gateways.example.org"]},
            "console": {"origins": ["https://console.example.org:8443"], "bind": "::"},
            "broker": {"advertise": "broker-0.broker:10911", "admin_bind": "broker-0"},
            "client": {"registries": ["registry:9876", "[::1]:9876"]},
            "gateway": {"listeners": [{"name": "w", "kind": "ws", "port": 1, "bind": "gateway.local"}]},
        }
    )
    hosts = AllowedHosts(config.host_names())
    for name in (
        "gw.example.org",
        "eu.gateways.example.org",
        "console.example.org",
        "broker-0.broker",
        "broker-0",
        "registry",
        "gateway.local",
    ):
        assert hosts.allows(name), name
    for name in ("evil.example", "example.org", "broker", "8443", "::"):
        assert not hosts.allows(name), name


@pytest.mark.parametrize(
    "host", ["https://gw.example.org", "gw.example.org:80", "*", "*.org", "", "::1", "a b"]
)
def test_a_host_that_is_no_name_is_refused(host: str) -> None:
    with pytest.raises(ValidationError, match="is no host name without a port"):
        SecuritySection(hosts=[host])
