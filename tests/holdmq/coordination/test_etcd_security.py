"""A real etcd with users, and with TLS: who may, who may not, and what is said to who may not."""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from etcd_members import EtcdCluster, etcd_cluster
from security import Authority

from holdmq.coordination.api import ShardSnapshot, ShardState
from holdmq.coordination.etcd import EtcdCoordinator
from holdmq.coordination.etcd_gateway import EtcdAccess
from holdmq.errors import ConfigError, CoordinatorError

STATE = ShardState(1, "a", ("a", "b", "c"), 1)
TOKEN_S = 1
Make = Callable[..., EtcdCoordinator]


@pytest.fixture
async def client() -> AsyncIterator[Make]:
    made: list[EtcdCoordinator] = []

    def make(access: EtcdAccess, shard: str = "shard") -> EtcdCoordinator:
        made.append(EtcdCoordinator(access, "/holdmq/", shard, "a", 5.0))
        return made[-1]

    yield make
    for each in made:
        await each.close()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """An etcd where the user holdmq may use /holdmq/, and other none of it."""
    with etcd_cluster(tmp_path_factory.mktemp("etcd"), 1, auth_token_ttl=str(TOKEN_S)) as cluster:
        ask = cluster.members[0].ask
        for name, password in (("root", "r"), ("holdmq", "h"), ("other", "o")):
            ask("/v3/auth/user/add", {"name": name, "password": password})
            ask("/v3/auth/role/add", {"name": name})
            ask("/v3/auth/user/grant", {"user": name, "role": name})
        for name, first, end in (("holdmq", b"/holdmq/", b"/holdmq0"), ("other", b"/other/", b"/other0")):
            key, range_end = (base64.b64encode(each).decode() for each in (first, end))
            perm = {"permType": "READWRITE", "key": key, "range_end": range_end}
            ask("/v3/auth/role/grant", {"name": name, "perm": perm})
        ask("/v3/auth/enable", {})
        yield cluster


async def test_a_user_may_do_all_that_a_replica_does(guarded: EtcdCluster, client: Make) -> None:
    a = client(EtcdAccess(guarded.urls, "holdmq", "h"))
    version = await a.compare_and_set(0, STATE)
    assert version is not None
    held = await a.hold(9)
    assert held
    assert await a.hold(9) == held
    snapshot = await a.read()
    assert snapshot == ShardSnapshot(STATE, version, "a")
    waiting = asyncio.create_task(a.changed(snapshot, 20))
    await asyncio.sleep(0.3)
    await a.release(held)
    assert (await asyncio.wait_for(waiting, 10)).holder == ""


async def test_a_token_that_expired_is_renewed(guarded: EtcdCluster, client: Make) -> None:
    a = client(EtcdAccess(guarded.urls, "holdmq", "h"), "renewed")
    held = await a.hold(30)
    assert held
    for _ in range(2):
        await asyncio.sleep(TOKEN_S + 1.5)
        assert await a.hold(30) == held
    await asyncio.sleep(TOKEN_S + 1.5)
    assert await a.compare_and_set(0, STATE)
    await asyncio.sleep(TOKEN_S + 1.5)
    changed = a.changed(ShardSnapshot(None, 0, "a"), 20)
    assert (await asyncio.wait_for(changed, 5)).state == STATE


async def test_a_password_is_read_from_its_file_at_each_login(
    guarded: EtcdCluster, client: Make, tmp_path: Path
) -> None:
    path = tmp_path / "password"
    access = EtcdAccess(guarded.urls, "holdmq", password_file=str(path))
    a = client(access, "file")
    with pytest.raises(CoordinatorError, match=r"coordination\.etcd\.password_file"):
        await a.read()
    path.write_text("wrong\n")
    path.chmod(0o600)
    with pytest.raises(CoordinatorError, match=r"look at coordination\.etcd\.user"):
        await a.read()
    path.write_text("h\n")
    assert await a.read() == ShardSnapshot(None, 0, "")


@pytest.mark.parametrize(
    ("user", "password", "said"),
    [
        ("holdmq", "wrong", r"look at coordination\.etcd\.user and its password"),
        ("nobody", "h", r"look at coordination\.etcd\.user and its password"),
        ("", "", r"coordination\.etcd\.user"),
        ("other", "o", r"permission denied.* readwrite"),
    ],
)
async def test_who_may_not_is_told_why(
    guarded: EtcdCluster, client: Make, user: str, password: str, said: str
) -> None:
    a = client(EtcdAccess(guarded.urls, user, password))
    for call in (a.read(), a.compare_and_set(0, STATE), a.hold(9)):
        with pytest.raises(CoordinatorError, match=said):
            await call


async def test_a_user_where_there_are_none_is_told_so(tmp_path: Path, client: Make) -> None:
    with etcd_cluster(tmp_path, 1) as cluster, pytest.raises(CoordinatorError, match="unset coordination"):
        await client(EtcdAccess(cluster.urls, "holdmq", "h")).read()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[EtcdCluster]:
    """An etcd that takes only clients with a certificate of `authority`."""
    files = authority.issue("etcd")
    tls = ssl.create_default_context(cafile=authority.ca)
    tls.load_cert_chain(files.cert, files.key)
    with etcd_cluster(
        tmp_path_factory.mktemp("etcd"), 1, "https", tls,
        cert_file=str(files.cert), key_file=str(files.key), trusted_ca_file=authority.ca,
        client_cert_auth="true",
    ) as cluster:  # fmt: skip
        yield cluster


async def test_both_sides_show_certificates(sealed: EtcdCluster, client: Make, authority: Authority) -> None:
    a = client(EtcdAccess(sealed.urls, tls_ca=authority.ca, **authority.client("replica-a")))
    version = await a.compare_and_set(0, STATE)
    assert version is not None
    held = await a.hold(9)
    assert held
    assert await a.hold(9) == held
    assert await a.changed(ShardSnapshot(None, 0, ""), 10) == ShardSnapshot(STATE, version, "a")


async def test_a_client_without_a_certificate_and_an_unknown_server_are_refused(
    sealed: EtcdCluster, client: Make, authority: Authority
) -> None:
    with pytest.raises(CoordinatorError, match="certificate required"):
        await client(EtcdAccess(sealed.urls, tls_ca=authority.ca)).read()
    with pytest.raises(CoordinatorError, match="CERTIFICATE_VERIFY_FAILED"):
        await client(EtcdAccess(sealed.urls, **authority.client("replica-a"))).read()


async def test_a_certificate_that_was_renewed_is_shown_without_a_restart(
    sealed: EtcdCluster, client: Make, authority: Authority, tmp_path: Path
) -> None:
    old = authority.issue("old", ("old",), dt.timedelta(days=-1))
    new = authority.issue("new", ("new",))
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    for source, target in ((old.cert, cert), (old.key, key)):
        target.write_bytes(source.read_bytes())
        target.chmod(0o600)
    a = client(EtcdAccess(sealed.urls, tls_ca=authority.ca, tls_cert=str(cert), tls_key=str(key)), "renewed")
    with pytest.raises(CoordinatorError):
        await a.read()
    cert.write_bytes(new.cert.read_bytes())
    key.write_bytes(new.key.read_bytes())
    await asyncio.sleep(1.2)
    with pytest.raises(CoordinatorError):
        await a.read()
    assert await a.read() == ShardSnapshot(None, 0, "")


def test_files_of_tls_that_are_missing_are_named_at_the_start() -> None:
    access = EtcdAccess(("https://127.0.0.1:1",), tls_ca="/nowhere/ca.pem")
    with pytest.raises(ConfigError, match=r"/nowhere/ca\.pem \(coordination\.etcd\.tls_ca\)"):
        EtcdCoordinator(access, "/holdmq/", "shard", "a", 1)
