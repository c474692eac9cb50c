"""Certificates and keys files for tests, from the commands' own code."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

from holdmq.credentials.certificates import CertificateFiles, issue, make_authority

SECRET = "secret-of-orders-" + "x" * 32
SERVICE_SECRET = "secret-of-service-" + "y" * 32
READER_SECRET = "secret-of-reader-" + "r" * 32
ADMIN_SECRET = "secret-of-admin-" + "z" * 32

KEYS = f"""
[keys.orders]
secret = "{SECRET}"
certificates = ["orders-client"]
produce = ["orders"]
consume = ["orders"]
groups = ["orders-*"]

[keys.service]
secret = "{SERVICE_SECRET}"
certificates = ["service-client"]
roles = ["service", "broker"]

[keys.reader]
secret = "{READER_SECRET}"
roles = ["reader"]

[keys.admin]
secret = "{ADMIN_SECRET}"
roles = ["admin"]
"""
LOCAL = ("127.0.0.1", "localhost")


def write_keys(path: Path, text: str = KEYS) -> str:
    """Write a keys file as its owner would; its path."""
    # Whole or not at all: who looks at it meanwhile may take half a file for a file.
    new = path.with_name(f"{path.name}.new")
    new.write_text(text, encoding="utf-8")
    new.chmod(0o600)
    new.replace(path)
    return str(path)


class Authority:
    """A directory with an authority, and what it signs."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ca = str(make_authority(directory).cert)

    def issue(
        self, name: str, hosts: tuple[str, ...] = LOCAL, lifetime: dt.timedelta | None = None
    ) -> CertificateFiles:
        return issue(self.directory, name, hosts, lifetime)

    def client(self, name: str) -> dict[str, str]:
        """A client's certificate, as `Security` takes it."""
        files = self.issue(name, (name,))
        return {"tls_cert": str(files.cert), "tls_key": str(files.key)}
