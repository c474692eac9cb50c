"""`holdmq cert`: what it makes works for TLS, and an authority is never replaced."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdmq.rpc.tls import ServerTls, client_context

Holdmq = Callable[..., Any]


def test_an_authority_and_its_certificate_work_for_server_and_client(holdmq: Holdmq, tmp_path: Path) -> None:
    made = holdmq("cert", "ca", "--dir", str(tmp_path), "--json")
    assert made.returncode == 0, made.stderr
    authority = json.loads(made.stdout)
    made = holdmq(
        "cert", "issue", "b", "--host", "b.example", "--host", "10.0.0.5", "--dir", str(tmp_path), "--json"
    )
    assert made.returncode == 0, made.stderr
    files = json.loads(made.stdout)
    assert stat.S_IMODE(Path(files["key"]).stat().st_mode) == 0o600
    ServerTls(files["cert"], files["key"], authority["cert"], True)
    client_context(authority["cert"], files["cert"], files["key"])
    facts = json.loads(holdmq("cert", "show", files["cert"], "--json").stdout)
    assert facts["names"] == "b.example, 10.0.0.5"
    assert facts["subject"] == "CN=b"


def test_an_authority_is_never_replaced(holdmq: Holdmq, tmp_path: Path) -> None:
    assert holdmq("cert", "ca", "--dir", str(tmp_path)).returncode == 0
    before = (tmp_path / "ca-key.pem").read_bytes()
    again = holdmq("cert", "ca", "--dir", str(tmp_path))
    assert again.returncode == 2
    assert "exists" in again.stderr
    taken = holdmq("cert", "issue", "ca", "--dir", str(tmp_path))
    assert taken.returncode == 2
    assert (tmp_path / "ca-key.pem").read_bytes() == before


def test_without_an_authority_the_command_says_how_to_make_one(
    holdmq: Holdmq, holdmq_process: Holdmq, tmp_path: Path
) -> None:
    refused = holdmq_process("cert", "issue", "b", "--dir", str(tmp_path))
    assert refused.returncode == 2
    assert f"holdmq cert ca --dir {tmp_path}" in refused.stderr
    refused = holdmq("cert", "show", str(tmp_path / "none.pem"))
    assert refused.returncode == 2
    assert "no readable PEM certificate" in refused.stderr
