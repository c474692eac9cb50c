"""Which logins of a worker's clients are tried, and which are held back as too many before them have failed.

Passwords, plug-ins' included, and SCRAM. The workers of a gateway tell each other, through their parent, of
each failure at once and of users who are known at an address once a second; a worker that is started again
begins with what the parent knows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from gateway.ground.addresses import address_key, is_local, shown_key
from gateway.session.scram import ScramError, wrong_password
from holdmq.credentials.login_failures import ADDRESS, Login, LoginFailures, Rules, login_of, login_row
from holdmq.service import telemetry

if TYPE_CHECKING:
    from gateway.ground.counters import Counters
    from gateway.ground.parent_port import ParentPort
    from gateway.session.authenticating import Begin, Exchange
    from holdmq.config.model import GatewaySection

LINES_PER_S: Final = 10
"""Lines about who is held back from now on: from many addresses there are many."""
KNOWN_PER_MESSAGE: Final = 400
"""Users that are told of at a time, some 80 bytes each: half of what the parent reads at once."""
KNOWN_WAITING_MAX: Final = 20_000
"""Users that the others were not told of yet: a reconnect storm's; more are told when they come again."""

log = telemetry.get_logger()


def failures_of(section: GatewaySection, key: bytes) -> LoginFailures | None:
    """What counts logins, as the configuration says; None = nothing does."""
    if not section.login_failures_max:
        return None
    return LoginFailures(
        Rules(
            section.login_failures_max,
            section.login_delay_s,
            section.login_delay_max_s,
            section.login_forget_s,
        ),
        key,
    )


class Attempt:
    """One login: whether it may be tried, and then how it went. With a `login` of None it is not counted."""

    __slots__ = ("_login", "_logins", "_shown")

    def __init__(self, logins: Logins, login: Login | None, shown: str) -> None:
        self._logins = logins
        self._login = login
        self._shown = shown

    def is_held(self) -> bool:
        """Whether it must be answered as one with a wrong password, whatever its password is."""
        return self._login is not None and self._logins.is_held(self._login)

    def refused(self) -> None:
        """Count that the login was answered so."""
        self._logins.refused()

    def failed(self) -> None:
        """Its password was tried, and is wrong."""
        self._logins.failed(self._login, self._shown)

    def succeeded(self) -> None:
        """Its password was right, and it was not held back."""
        if self._login is not None:
            self._logins.succeeded(self._login)


class Logins:
    """The logins of one worker; `failures` counts them, None = nobody is held back."""

    def __init__(
        self,
        section: GatewaySection,
        failures: LoginFailures | None,
        counters: Counters,
        now: Callable[[], float],
        parent: ParentPort,
    ) -> None:
        self._counters = counters
        self._now = now
        self._parent = parent
        self._failures = failures
        self._counts_local = section.login_loopback_counted
        self._known: dict[Login, None] = {}
        self._lines = 0

    def attempt(self, born_host: bytes, user: str, secret: bytes | None) -> Attempt:
        """A login of a user at an address; a `secret` of None cannot be compared with that of another one."""
        failures = self._failures
        if failures is None or (not self._counts_local and is_local(born_host)):
            return Attempt(self, None, user)
        return Attempt(self, failures.login(address_key(born_host), user, secret), user)

    def counted(self, begin: Begin, born_host: bytes) -> CountedExchange:
        """Begin an exchange of SCRAM with a client at this address."""
        return CountedExchange(self, begin(), born_host)

    def is_held(self, login: Login) -> bool:
        """Whether a login must not be tried now."""
        assert self._failures is not None
        return self._failures.is_held(login, self._now())

    def refused(self) -> None:
        """A login that is held back was refused."""
        self._counters.logins_held_total += 1

    def failed(self, login: Login | None, user: str) -> None:
        """A login has failed; None = one that is not counted by address and user."""
        self._counters.login_failures_total += 1
        if login is None or self._failures is None:
            return
        for who in self._failures.failed(login, self._now()):
            self._counters.login_holds_total += 1
            self._lines += 1
            if self._lines <= LINES_PER_S:
                fields = {"address": shown_key(login.address)}
                if who != ADDRESS:
                    fields["user"] = user[:64]
                log.warning("too many logins have failed; more have to wait", held_back=who, **fields)
        if self._parent.has_parent:
            self._parent.tell({"login_failed": login_row(login)})

    def succeeded(self, login: Login) -> None:
        """A login was right."""
        assert self._failures is not None
        is_news = self._failures.succeeded(login, self._now())
        if is_news and self._parent.has_parent and len(self._known) < KNOWN_WAITING_MAX:
            self._known[login._replace(guess=b"")] = None  # nobody needs what was right

    def told(self, message: dict[str, Any]) -> None:
        """The parent says what another worker has seen."""
        if self._failures is not None:
            take(self._failures, message, self._now())

    def forget(self, user: str | None) -> None:
        """Let a user, or everybody (None), try at once again."""
        if self._failures is not None:
            self._failures.forget(user)

    def each_second(self, now: float) -> None:
        """Forget what is over; tell the others who is known."""
        if self._lines > LINES_PER_S:
            log.warning("more addresses and users have to wait", not_logged=self._lines - LINES_PER_S)
        self._lines = 0
        if self._failures is None:
            return
        self._failures.expire(now)
        self._counters.login_holds = self._failures.held
        while self._known:
            some = [login for login, _ in zip(self._known, range(KNOWN_PER_MESSAGE), strict=False)]
            if not self._parent.tell({"logins_known": [login_row(login) for login in some]}):
                break  # no room there now
            for login in some:
                del self._known[login]


def take(failures: LoginFailures, message: dict[str, Any], now: float) -> None:
    """Count what a worker said of its logins."""
    if "login_failed" in message:
        failures.failed(login_of(message["login_failed"]), now)
    for row in message.get("logins_known", ()):
        failures.succeeded(login_of(row), now)


class CountedExchange:
    """A SCRAM exchange whose end is counted.

    Only that is held back: until then the client has guessed nothing, and was told nothing of the user.
    """

    __slots__ = ("_born_host", "_exchange", "_logins", "is_done", "user")

    def __init__(self, logins: Logins, exchange: Exchange, born_host: bytes) -> None:
        self._logins = logins
        self._exchange = exchange
        self._born_host = born_host
        self.is_done = False
        self.user = ""

    def receive(self, message: bytes) -> bytes:
        """Take the client's message, return the server's. Raises ScramError."""
        if not self.user:
            challenge = self._exchange.receive(message)
            self.user = self._exchange.user
            return challenge
        attempt = self._logins.attempt(self._born_host, self.user, None)
        if attempt.is_held():
            attempt.refused()
            raise wrong_password(self.user)
        try:
            answer = self._exchange.receive(message)
        except ScramError:
            attempt.failed()
            raise
        self.is_done = self._exchange.is_done
        attempt.succeeded()
        return answer
