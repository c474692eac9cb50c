"""The coordinator's client that the configuration names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdmq.coordination.api import Coordinator
from holdmq.errors import ConfigError

if TYPE_CHECKING:
    from holdmq.config.model import Config


def coordinator_of(config: Config, replica_id: str) -> Coordinator | None:
    """A client for the shard ``broker.name`` of ``cluster.name``; None with ``coordination.kind = "none"``.

    Blocks, for files of TLS. Raises ConfigError for what is missing, a package among it.
    """
    section = config.coordination
    cluster, shard, timeout_s = config.cluster.name, config.broker.name, section.timeout_s
    if section.kind == "none":
        return None
    try:
        if section.kind == "kubernetes":
            from holdmq.coordination.kubernetes import KubernetesCoordinator
            from holdmq.coordination.kubernetes_api import KubernetesAccess

            kubernetes = KubernetesAccess(section.kubernetes.kubeconfig, section.kubernetes.namespace)
            return KubernetesCoordinator(kubernetes, cluster, shard, replica_id, timeout_s)
        from holdmq.coordination.etcd import EtcdCoordinator
        from holdmq.coordination.etcd_gateway import EtcdAccess
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"coordination.kind = {section.kind} needs the package {error.name}; install it: "
            f"pip install 'holdmq[{section.kind}]'"
        ) from error
    etcd = section.etcd
    if not etcd.urls:
        raise ConfigError(
            "coordination.etcd.urls does not say where etcd is: name the client URL of each member, as "
            "https://etcd-0.example:2379"
        )
    access = EtcdAccess(
        urls=tuple(etcd.urls),
        user=etcd.user,
        password=etcd.password.get_secret_value() if etcd.password is not None else "",
        password_file=etcd.password_file,
        tls_ca=etcd.tls_ca,
        tls_cert=etcd.tls_cert,
        tls_key=etcd.tls_key,
    )
    return EtcdCoordinator(access, f"{etcd.prefix}{cluster}/", shard, replica_id, timeout_s)
