"""What ``holdmq up`` says last: where its console is, and who signs in there."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdmq.config.analytics import ConsoleSection
from holdmq.errors import HoldMQError

FIRST_USER: Final = "admin"


@dataclass(frozen=True, slots=True)
class SignIn:
    """Account and password of the console; `user` "" = nobody signs in, `password` "" = shown before."""

    user: str
    password: str = ""

    def facts(self, url: str) -> dict[str, str]:
        """Return what a program is told; what there is nothing of is left out."""
        found = {"console": url, "user": self.user, "password": self.password}
        return {name: value for name, value in found.items() if value}

    def sentence(self, url: str, data_dir: str) -> str:
        """Return what a person is told, with what to do where nobody knows the password any more."""
        if not self.user:
            return f"the console is at {url}, where nobody has to sign in (console.auth is none)"
        if self.password:
            return (
                f"sign in at {url} as {self.user} with the password {self.password} "
                "(shown this once; you choose your own then)"
            )
        words = ["holdmq", "console", "user", "passwd", self.user]
        if data_dir != ConsoleSection().data_dir:
            words.append(f"--set=console.data_dir={data_dir}")
        return (
            f"sign in at {url} as {self.user}; its password was shown when it was made, and a new one "
            f"comes from: {shlex.join(words)}"
        )


def prepare_sign_in(section: ConsoleSection) -> SignIn:
    """Return who signs in, after the first account is made where there is none; blocking.

    The console is about to start on the same accounts: when they cannot be read or written, or a package of
    it is missing, it says so itself.
    """
    if section.auth == "none":
        return SignIn("")
    directory = Path(section.data_dir)
    try:
        from console.identity.accounts import AccountFile

        file = AccountFile(directory)
        password = file.begin()
        if password is not None:
            return SignIn(FIRST_USER, password)
        accounts = file.load().accounts.values()
    except (HoldMQError, ModuleNotFoundError):
        return SignIn(FIRST_USER)
    ranked = sorted((one.disabled, one.role != "admin", one.name != FIRST_USER, one.name) for one in accounts)
    return SignIn(ranked[0][-1])
