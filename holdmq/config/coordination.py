"""The section ``[coordination]``: who decides which replica leads a shard, and how it is reached."""

from __future__ import annotations

from typing import Final, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationInfo, field_validator

from holdmq.config.section import Section

URLS_MAX: Final = 16
"""Members of an etcd that are named: it has seven at most, some of them under two names."""


class EtcdSection(Section):
    """An etcd, by its JSON gateway at the members' client URLs."""

    urls: list[str] = Field(
        [],
        max_length=URLS_MAX,
        description="Client URLs of all members, as https://etcd-0.example:2379: one that fails is passed "
        "over for the next.",
    )
    user: str = Field("", max_length=256, description="User to log in as; empty = etcd has no users.")
    password: SecretStr | None = Field(
        None, description="Password of user; better in a file, as others may see the command line."
    )
    password_file: str = Field(
        "", description="File with the password of user, readable by its owner only; read at each login."
    )
    prefix: str = Field(
        "/holdmq/",
        pattern=r"^/([A-Za-z0-9_.-]{1,64}/){1,8}$",
        description="Beginning of every key; the cluster's name and the shard's follow.",
    )
    tls_ca: str = Field(
        "",
        description="PEM file of the authorities that sign the members' certificates; empty = the system's.",
    )
    tls_cert: str = Field("", description="PEM file of the client certificate to show; empty = none.")
    tls_key: str = Field("", description="PEM file of the key of tls_cert, readable by its owner only.")

    @field_validator("urls")
    @classmethod
    def _are_urls_of_members(cls, value: list[str]) -> list[str]:
        for url in value:
            if not _is_url_of_a_member(url):
                # It may hold a password, which is not repeated.
                raise ValueError(
                    "each is http://host:port or https://host:port and nothing else; "
                    "user and password have keys of their own"
                )
        if len({url.partition(":")[0] for url in value}) > 1:
            raise ValueError("either all begin with https:// or none does")
        if len(set(value)) != len(value):
            raise ValueError("a member is named twice")
        return value

    @field_validator("password_file")
    @classmethod
    def _is_one_password_of_a_user(cls, value: str, info: ValidationInfo) -> str:
        has_password = info.data.get("password") is not None
        if value and has_password:
            raise ValueError("coordination.etcd.password is set, too: one of them is enough")
        if bool(info.data.get("user")) != bool(value or has_password):
            raise ValueError(
                "coordination.etcd.user and its password belong together: set it, and one of password and "
                "password_file, or none of the three"
            )
        return value

    @field_validator("tls_key")
    @classmethod
    def _fits_the_certificate(cls, value: str, info: ValidationInfo) -> str:
        if bool(value) != bool(info.data.get("tls_cert")):
            raise ValueError("coordination.etcd.tls_cert and tls_key belong together: set both or none")
        has_tls = any(info.data.get(key) for key in ("tls_ca", "tls_cert"))
        if has_tls and any(url.startswith("http:") for url in info.data.get("urls", ())):
            raise ValueError("tls_ca and tls_cert are for TLS, and urls begin with http://: write https://")
        return value


class KubernetesSection(Section):
    """The Kubernetes API, where each shard is an object of the kind Lease."""

    namespace: str = Field(
        "",
        pattern=r"^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?$",
        description="Namespace of the objects; empty = the pod's own.",
    )
    kubeconfig: str = Field(
        "",
        description="kubeconfig file that says where the API is; empty = this runs in a pod, and uses its "
        "service account.",
    )


class CoordinationSection(Section):
    """The coordinator that decides which replica leads a shard; replicas agree on nothing by themselves."""

    kind: Literal["none", "etcd", "kubernetes"] = Field(
        "none",
        description="none = each broker is alone, as one machine needs it; etcd = an etcd of 3.5.6 or newer; "
        "kubernetes = a Lease of the API for each shard.",
    )
    timeout_s: float = Field(
        2,
        ge=0.1,
        le=20,
        description="How long a call may take, all members that are tried together: several elections of an "
        "etcd on one site.",
    )
    renew_s: float = Field(
        3, ge=0.1, le=60, description="How often a leader renews its lease: three times in each."
    )
    margin_s: float = Field(
        2,
        ge=0.1,
        le=60,
        description="How long before its lease ends a leader stops to trust it: clocks may differ in rate, "
        "and a process may be stopped between looking and acting.",
    )
    ttl_s: int = Field(
        9,
        ge=2,
        le=60,
        description="How long a lease lasts that is not renewed: what a failover waits for. At least renew_s "
        "+ 2 × timeout_s + margin_s, so that one renewal may fail and the next is still in time.",
    )
    etcd: EtcdSection = EtcdSection()
    kubernetes: KubernetesSection = KubernetesSection()

    @field_validator("ttl_s")
    @classmethod
    def _leaves_time_for_a_second_renewal(cls, value: int, info: ValidationInfo) -> int:
        times = info.data
        # One that is wrong by itself is not there.
        if times.keys() >= {"renew_s", "timeout_s", "margin_s"}:
            needed = times["renew_s"] + 2 * times["timeout_s"] + times["margin_s"]
            if value < needed:
                raise ValueError(
                    f"it must be at least renew_s + 2 * timeout_s + margin_s, which is {needed:g}"
                )
        return value


def _is_url_of_a_member(url: str) -> bool:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    return (
        parts.scheme in ("http", "https")
        and bool(parts.hostname)
        and bool(port)
        and "@" not in parts.netloc
        and not (parts.path.rstrip("/") or parts.query or parts.fragment)
    )
