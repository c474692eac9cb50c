"""SCRAM-SHA-256 at the server: the exchange of RFC 7677, and what is refused."""

from __future__ import annotations

import base64

import pytest
from scram_client import ScramClient

from gateway.session.scram import Decoys, ScramError, ScramServer, Verifier, saslprep

# RFC 7677, 3.
USER, PASSWORD = "user", "pencil"
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
CHALLENGE = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
LAST = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
VERIFIER = Verifier.of(PASSWORD, SALT)


def server(verifier: Verifier | None = VERIFIER, user: str = USER) -> ScramServer:
    invented = Verifier(4096, b"\1" * 16, b"", b"")
    return ScramServer(lambda name: verifier if name == user else None, lambda _: invented, NONCE)


def test_the_exchange_of_the_rfc() -> None:
    exchange = server()
    assert exchange.receive(FIRST) == CHALLENGE
    assert not exchange.is_done
    assert exchange.receive(FINAL) == LAST
    assert exchange.is_done
    assert exchange.user == "user"


def test_a_verifier_is_read_as_it_was_written() -> None:
    text = str(VERIFIER)
    assert text.startswith("SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$")
    assert Verifier.parse(text) == VERIFIER
    assert PASSWORD not in text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "SCRAM-SHA-1$4096:AA==$AA==:AA==",
        str(VERIFIER).replace("4096", "1"),
        str(VERIFIER).replace("4096", "9999999"),
        str(VERIFIER)[:-3],
        "SCRAM-SHA-256$4096:AAAA$AAAA:AAAA",
    ],
)
def test_a_text_that_is_no_verifier_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"verifier|[Bb]ase64|padding"):
        Verifier.parse(text)


def test_a_client_with_the_wrong_password_fails_at_the_end() -> None:
    exchange, client = server(), ScramClient(USER, "pen")
    with pytest.raises(ScramError, match="a wrong password of 'user'"):
        exchange.receive(client.final(exchange.receive(client.first())))
    assert not exchange.is_done


def test_an_unknown_user_gets_a_challenge_and_fails_at_the_end() -> None:
    exchange, client = server(), ScramClient("nobody", PASSWORD)
    challenge = exchange.receive(client.first())
    assert b"s=AQEBAQEBAQEBAQEBAQEBAQ==,i=4096" in challenge
    with pytest.raises(ScramError, match="no such user, or a wrong password of 'nobody'"):
        exchange.receive(client.final(challenge))
    assert not exchange.is_done


def test_a_user_is_found_by_the_same_work_as_none_is() -> None:
    invented: list[str] = []

    def invent(name: str) -> Verifier:
        invented.append(name)
        return Verifier(4096, b"\1" * 16, b"\0" * 32, b"")

    for name in (USER, "nobody"):
        exchange = ScramServer({USER: VERIFIER}.get, invent, NONCE)
        exchange.receive(ScramClient(name, PASSWORD).first())
    assert invented == [USER, "nobody"]


def test_decoys_are_as_whole_as_real_verifiers_and_depend_on_key_and_name() -> None:
    decoys, others = Decoys(b"key", [VERIFIER]), Decoys(b"other", [VERIFIER])
    made = decoys.verifier_of("nobody")
    assert (made.iterations, len(made.salt), len(made.stored_key)) == (4096, 16, 32)
    assert made == Decoys(b"key", [VERIFIER] * 3).verifier_of("nobody")
    assert len({made.salt, decoys.verifier_of("somebody").salt, others.verifier_of("nobody").salt}) == 3


@pytest.mark.parametrize(("old", "new"), [(b"p=", b"p="), (b"p=dHzbZapW", b"p="), (b"p=dHzb", b"p=!!!!")])
def test_what_is_said_at_the_end_does_not_tell_whether_there_is_such_a_user(old: bytes, new: bytes) -> None:
    said: list[str] = []
    for verifier in (Verifier.of("other", SALT), None):
        exchange = server(verifier)
        nonce = exchange.receive(FIRST).split(b",")[0]
        with pytest.raises(ScramError) as raised:
            exchange.receive(b"c=biws," + nonce + FINAL[FINAL.index(b",p=") :].replace(old, new))
        said.append(str(raised.value))
    assert said[0] == said[1]


def test_names_with_commas_and_equals_signs_are_read() -> None:
    exchange, client = server(user="a=b,c"), ScramClient("a=b,c", PASSWORD)
    assert client.verify(exchange.receive(client.final(exchange.receive(client.first()))))
    assert exchange.user == "a=b,c"


@pytest.mark.parametrize(
    ("first", "what"),
    [
        (b"", "channel binding '' is not offered"),
        (b"\xff", "not UTF-8"),
        (b"n,,", "without user and nonce"),
        (b"n,,n=user", "without user and nonce"),
        (b"n,,r=abc,n=user", "without user and nonce"),
        (b"n,,n=,r=abc", "a user name that is none"),
        (b"n,,n=us=er,r=abc", "a user name that is none"),
        (b"n,,n=user,r=", "a nonce that is none"),
        (b"n,,n=user,r=a b", "a nonce that is none"),
        (b"n,,m=x,n=user,r=abc", "without user and nonce"),
        (b"p=tls-unique,,n=user,r=abc", "channel binding 'p=tls-unique' is not offered"),
        (b"n" * 5000, "has no place here"),
    ],
)
def test_a_first_message_that_is_none_is_refused(first: bytes, what: str) -> None:
    with pytest.raises(ScramError, match=what):
        server().receive(first)


def test_acting_as_another_user_is_refused() -> None:
    assert server().receive(b"n,a=user,n=user,r=abc")
    with pytest.raises(ScramError, match="another user"):
        server().receive(b"n,a=root,n=user,r=abc")


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (b"c=biws", b"c=eSws", "binding changed"),
        (b"rOprNGfwEbeRWgbNEkqO%hv", b"rOprNGfwEbeRWgbNEkqO%hx", "nonce"),
        (b"c=biws,", b"", "without binding"),
        (b",p=", b",q=", "without binding"),
        (b"p=dHzb", b"p=!!!!", "base64"),
        (b"p=dHzbZapW", b"p=", "wrong length"),
        (b"p=dHzb", b"p=dHzc", "wrong password"),
        (b"p=", b"x=1,p=", "wrong password"),
    ],
)
def test_a_final_message_that_was_changed_is_refused(old: bytes, new: bytes, what: str) -> None:
    exchange = server()
    exchange.receive(FIRST)
    changed = FINAL.replace(old, new)
    assert changed != FINAL
    with pytest.raises(ScramError, match=what):
        exchange.receive(changed)
    assert not exchange.is_done


def test_nothing_follows_the_end() -> None:
    exchange = server()
    exchange.receive(FIRST)
    exchange.receive(FINAL)
    with pytest.raises(ScramError):
        exchange.receive(FINAL)


@pytest.mark.parametrize(
    ("text", "prepared"),
    [("I\u00adX", "IX"), ("user", "user"), ("USER", "USER"), ("\u00aa", "a"), ("\u2168", "IX")],
)
def test_names_and_passwords_are_prepared(text: str, prepared: str) -> None:  # RFC 4013, 3
    assert saslprep(text) == prepared


@pytest.mark.parametrize("text", ["\u0007", "\u0627\u0031", "\u00ad", "\U000e0001"])
def test_texts_that_cannot_be_prepared_are_refused(text: str) -> None:  # RFC 4013, 3
    with pytest.raises(ValueError, match="a text"):
        saslprep(text)
