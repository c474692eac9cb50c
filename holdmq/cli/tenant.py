"""``holdmq tenant list | show | remove``: who shares the cluster, what each has and uses, and its end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from holdmq.cli.calls import run_calls
from holdmq.cli.options import Asking, CommandGroup, print_json
from holdmq.cli.shown import say
from holdmq.config.model import Config
from holdmq.errors import ConfigError
from holdmq.quotas.limits import LIMITS
from holdmq.service.process import EXIT_FAILED

if TYPE_CHECKING:
    from holdmq.client.quotas import QuotaView
    from holdmq.client.tenants import TenantAdmin, TenantView

T = TypeVar("T")

app = CommandGroup(
    "Tenants: who shares the cluster. One exists while a topic, group, access key or quota names it.",
    "holdmq tenant list",
)

Users = Mapping[str, list[str]]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The tenant.")]


@app.add("list", example="holdmq tenant list --json")
def list_(given: Asking) -> None:
    """List tenants with what they have, and what they use of their quotas."""
    config = given.configuration()
    users = _users_of(config)
    found = _run(config, lambda tenants: tenants.list())
    known = {view.tenant: view for view in found.tenants}
    views = [known.get(name) or _of_users(name) for name in sorted(known.keys() | users.keys())]
    given.table(
        ("tenant", "topics", "groups", "messages", "access keys", "users", "uses"),
        [_facts(view, users) for view in views],
        lambda row: (
            row["tenant"],
            len(row["topics"]),
            len(row["groups"]),
            row["messages"],
            ", ".join(row["keys"]),
            ", ".join(row["users"]),
            _uses(row["quota"]),
        ),
    )
    if found.away:
        say(f"no answer from {', '.join(found.away)}: what only they know is missing", err=True)


@app.add("show", example="holdmq tenant show acme")
def show(given: Asking, name: Name) -> None:
    """Show a tenant: topics, groups, keys, users, what it uses of its quota. Exit code 1: there is none."""
    config = given.configuration()
    users = _users_of(config)
    view = _found(config, name, users)
    given.tell(_facts(view, users), *_sentences(view, users))


@app.add("remove", example="holdmq tenant remove acme --yes")
def remove(
    given: Asking,
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without it is said what would go.")] = False,
) -> None:
    """Remove a tenant: its topics with all their messages, its groups and its quota.

    Without --yes nothing is removed. Access keys and users are in files: those that name the tenant still are
    listed. Exit code 1 if something is left, or nothing names the tenant.
    """
    config = given.configuration()
    users = _users_of(config)
    if not yes:
        view = _found(config, name, users)
        given.tell(
            {**_facts(view, users), "removed": False},
            *_sentences(view, users),
            "--yes removes all but access keys and users",
        )
        return
    done = _run(config, lambda tenants: tenants.remove(name))
    if done is None:
        raise _none(name)
    if given.as_json:
        print_json({**done._asdict(), "users": users.get(name, []), "removed": True})
    else:
        say(f"removed: {_named('topics', done.topics)}; {_named('groups', done.groups)}")
        if done.had_quota:
            say(f"{name} has no quota any more")
    for what, why in done.failures:
        say(f"{what} is left: {why}", err=True)
    if done.keys:
        say(f"access keys name {name} still: {', '.join(done.keys)}; `holdmq key delete` ends them", err=True)
    if name in users:
        say(f"{config.access.tenants_file} names users of {name} still: {', '.join(users[name])}", err=True)
    if done.failures:
        raise typer.Exit(EXIT_FAILED)


def _users_of(config: Config) -> dict[str, list[str]]:
    """Users by tenant, as the configuration's access.tenants_file names them; {} where there is none.

    Gateways refuse a file with a line that is none (docs/access.md); here such a line names nobody.
    """
    path = config.access.tenants_file
    if not path:
        return {}
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"access.tenants_file: {path} cannot be read: {error}") from error
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        user, colon, tenant = line.strip().rpartition(":")
        if colon and not user.startswith("#"):
            found.setdefault(tenant.strip(), []).append(user.strip())
    return found


def _found(config: Config, name: str, users: Users) -> TenantView:
    """The tenant; ends the command where nothing names it."""
    view = _run(config, lambda tenants: tenants.show(name))
    if view is None and name not in users:
        raise _none(name)
    return view or _of_users(name)


def _of_users(name: str) -> TenantView:
    """A tenant that users alone name."""
    from holdmq.client.tenants import TenantView

    return TenantView(name, [], [], [], 0, None)


def _facts(view: TenantView, users: Users) -> dict[str, Any]:
    facts = {**view._asdict(), "users": users.get(view.tenant, [])}
    if view.quota is not None:
        facts["quota"] = {"limits": _limits(view.quota), "used": _used(view.quota)}
    return facts


def _sentences(view: TenantView, users: Users) -> list[str]:
    return [
        _named("topics", view.topics),
        _named("groups", view.groups),
        f"messages: {view.messages}",
        _named("access keys", view.keys),
        *([_named("users", users[view.tenant])] if view.tenant in users else []),
        f"uses: {_uses(_facts(view, users)['quota'])}",
    ]


def _named(what: str, names: list[str]) -> str:
    return f"{what}: {', '.join(names) or 'none'}"


def _limits(view: QuotaView) -> dict[str, int]:
    return {limit: getattr(view.quota, limit) for limit in LIMITS if getattr(view.quota, limit)}


def _used(view: QuotaView) -> dict[str, int]:
    use = view.used
    used = (use.messages_per_s, use.bytes_per_s, use.topics, use.sessions, use.connections, use.kept_bytes)
    return dict(zip(LIMITS, used, strict=True))


def _uses(quota: dict[str, dict[str, int]] | None) -> str:
    """What is used of each limit."""
    if quota is None:
        return "what it likes: it has no quota"
    return ", ".join(f"{limit} {quota['used'][limit]} of {most}" for limit, most in quota["limits"].items())


def _none(name: str) -> typer.Exit:
    say(f"nothing names a tenant {name}: no topic, group, access key or quota", err=True)
    return typer.Exit(EXIT_FAILED)


def _run(config: Config, work: Callable[[TenantAdmin], Awaitable[T]]) -> T:
    from holdmq.client.tenants import TenantAdmin

    return run_calls(config, TenantAdmin, work)
