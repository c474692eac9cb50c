"""HELLO's proofs: what they depend on, and what is no challenge."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from holdmq.errors import WireError
from holdmq.wire.auth import NONCE_BYTES, challenge_of, client_proof, is_proof, server_proof
from holdmq.wire.headers import HelloRequest

SECRET = b"s" * 43
NONCE = bytes(NONCE_BYTES)
HELLO = HelloRequest(1, "client", "c-1", "python", "orders", b"n" * NONCE_BYTES, tenant="acme")


def test_both_sides_compute_the_same_proof() -> None:
    assert is_proof(client_proof(SECRET, HELLO, NONCE), client_proof(SECRET, replace(HELLO), NONCE))


def test_the_proof_itself_is_no_part_of_what_is_proven() -> None:
    proof = client_proof(SECRET, HELLO, NONCE)
    assert client_proof(SECRET, replace(HELLO, proof=proof), NONCE) == proof


def test_a_proof_depends_on_every_field_of_hello() -> None:
    proof = client_proof(SECRET, HELLO, NONCE)
    for field in fields(HELLO):
        if field.name == "proof":
            continue
        value = getattr(HELLO, field.name)
        other = replace(HELLO, **{field.name: value + (1 if isinstance(value, int) else value[:1])})
        assert not is_proof(client_proof(SECRET, other, NONCE), proof), field.name


def test_a_proof_depends_on_secret_and_server_nonce() -> None:
    proof = client_proof(SECRET, HELLO, NONCE)
    assert client_proof(SECRET + b"s", HELLO, NONCE) != proof
    assert client_proof(SECRET, HELLO, b"\x01" * NONCE_BYTES) != proof


def test_the_clients_proof_cannot_be_played_back_as_the_servers() -> None:
    assert client_proof(SECRET, HELLO, NONCE) != server_proof(SECRET, HELLO, NONCE)


def test_text_cannot_move_from_one_field_to_the_next() -> None:
    one = replace(HELLO, role="client", client_id="x")
    other = replace(HELLO, role="clientx", client_id="")
    assert client_proof(SECRET, one, NONCE) != client_proof(SECRET, other, NONCE)


@pytest.mark.parametrize("nonce", ["text", b"short", b"x" * (NONCE_BYTES + 1), 7])
def test_what_is_no_nonce_is_refused(nonce: object) -> None:
    with pytest.raises(WireError, match="no nonce"):
        challenge_of({"nonce": nonce})


def test_a_refusal_without_a_nonce_is_no_challenge() -> None:
    assert challenge_of({}) is None
    assert challenge_of({"nonce": NONCE}) == NONCE
