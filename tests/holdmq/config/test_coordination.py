"""[coordination]: what goes together, and what is refused by which sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdmq.config.sources import load
from holdmq.errors import ConfigError

TWO = "coordination.etcd.urls=https://a:2379,https://b:2379"


def test_a_file_says_all_of_it(tmp_path: Path) -> None:
    file = tmp_path / "holdmq.toml"
    file.write_text(
        '[coordination]\nkind = "etcd"\nttl_s = 12\n'
        '[coordination.etcd]\nurls = ["https://a:2379", "https://[::1]:2379/"]\n'
        'user = "u"\npassword = "hush"\n'
        'prefix = "/a/b/"\ntls_ca = "ca.pem"\ntls_cert = "c.pem"\ntls_key = "k.pem"\n'
        '[coordination.kubernetes]\nnamespace = "brokers"\n'
    )
    section = load(file, ["coordination.etcd.prefix=/c/"], {"HOLDMQ_COORDINATION__TTL_S": "11"}).coordination
    assert (section.kind, section.ttl_s, section.etcd.prefix) == ("etcd", 11, "/c/")
    assert section.etcd.urls == ["https://a:2379", "https://[::1]:2379/"]
    assert section.kubernetes.namespace == "brokers"
    assert "hush" not in repr(section)


def test_by_default_there_is_none_and_its_times_go_together() -> None:
    section = load(None, [], {}).coordination
    assert section.kind == "none"
    assert (section.ttl_s, section.renew_s, section.margin_s, section.timeout_s) == (9, 3, 2, 2)


@pytest.mark.parametrize(
    "url",
    [
        "a:2379", "https://a", "https://a:0", "https://a:x", "https://a:70000", "ftp://a:1", "https://:2379",
        "https://u:hush@a:2379", "https://a:2379/v3", "https://a:2379?x", "https://a:2379#x", "https://[::1:2379",
    ],
)  # fmt: skip
def test_a_url_is_that_of_a_member(url: str) -> None:
    with pytest.raises(ConfigError, match=r"coordination\.etcd\.urls.*https://host:port"):
        load(None, [f"coordination.etcd.urls={url}"], {})


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (["coordination.etcd.urls=https://a:1,http://b:1"], "either all begin with https"),
        (["coordination.etcd.urls=https://a:1,https://a:1"], "named twice"),
        ([f"coordination.etcd.urls={','.join(f'https://a:{i}' for i in range(1, 18))}"], "16 items"),
        ([TWO, "coordination.etcd.user=u"], "belong together"),
        ([TWO, "coordination.etcd.password=p"], "belong together"),
        ([TWO, "coordination.etcd.password_file=p"], "belong together"),
        (
            [TWO, *(f"coordination.etcd.{each}" for each in ("user=u", "password=p", "password_file=f"))],
            "one of them is enough",
        ),
        ([TWO, "coordination.etcd.tls_cert=c"], "tls_cert and tls_key belong together"),
        ([TWO, "coordination.etcd.tls_key=c"], "tls_cert and tls_key belong together"),
        (["coordination.etcd.urls=http://a:1", "coordination.etcd.tls_ca=c"], "write https://"),
        (["coordination.etcd.prefix=holdmq/"], "coordination.etcd.prefix"),
        (["coordination.etcd.prefix=/holdmq"], "coordination.etcd.prefix"),
        (["coordination.etcd.prefix=/"], "coordination.etcd.prefix"),
        (["coordination.kubernetes.namespace=A_b"], "coordination.kubernetes.namespace"),
        (["coordination.kind=zookeeper"], "coordination.kind"),
        (["coordination.ttl_s=8"], "at least renew_s + 2 * timeout_s + margin_s, which is 9"),
        (["coordination.timeout_s=2.5"], "which is 10"),
        (["coordination.margin_s=3"], "which is 10"),
        (["coordination.ttl_s=1"], "coordination.ttl_s"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused(sets: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(None, sets, {})
    assert said in str(refused.value)


def test_shorter_times_go_together_as_well() -> None:
    sets = [f"coordination.{each}" for each in ("ttl_s=2", "renew_s=0.5", "timeout_s=0.5", "margin_s=0.5")]
    assert load(None, sets, {}).coordination.ttl_s == 2
