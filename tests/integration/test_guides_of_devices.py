"""Commands of README.md and of pages on devices and operating run, and find what is there."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from command_line import flags_of, run_here
from mqtt_client import MqttClient
from page_blocks import ROOT, Block, blocks_of, words_of
from processes import Stack, running_stack, wait_until

PAGES = ("retained.md", "sessions.md", "clients.md", "alarms.md")
FINDS = {
    "topic create devices": "devices is on broker-0 with 8 queues",
    "topic list": "devices",
    "topic queues": "broker-0",
    "topic readers": "",
    "retained list": "devices/42/state",
    "retained show": "on",
    "session list": "meter-42",
    "session show": "cmd/42",
    "session shares": "group",
    "ban list": "meter-42",
    "connection list": "",
    "connection busiest": "",
}
"""What the output of some commands has in it, by their first words."""

ASKING = (["client", "kick"], ["session", "drop"], ["retained", "drop"])
"""Commands that ask whether they are meant."""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running_stack(tmp_path_factory.mktemp("devices")) as stack:
        yield stack


def commands_of(page: str, *languages: str) -> list[list[str]]:
    blocks: list[Block] = [block for block in blocks_of(ROOT / page) if block.language in languages]
    return [words for block in blocks for words in words_of(block, options=False)]


def test_the_first_message_of_the_readme_arrives(stack: Stack) -> None:
    subscribe, publish = (w for w in commands_of("README.md", "sh") if w[0].startswith("mosquitto"))
    there = ["-p", str(stack.mqtt_port)]
    # One message, and then it ends: at a terminal one ends it by Ctrl-C.
    with subprocess.Popen(
        [*subscribe, *there, "-C", "1", "-W", "60"], stdout=subprocess.PIPE, text=True
    ) as sub:
        try:

            def arrived() -> bool:
                subprocess.run([*publish, *there], check=True, timeout=30)
                return sub.poll() is not None

            wait_until(arrived, "the subscription is there")
            assert sub.communicate(timeout=30)[0].splitlines()[0] == "devices/1/temp 21"
        finally:
            sub.kill()
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "`devices/1/temp 21`" in text


def run_page(stack: Stack, page: str, *languages: str) -> None:
    """Run each command of a page; AssertionError where one fails, or finds not what is there."""
    commands = commands_of(f"docs/{page}", *languages)
    assert commands
    for program, *words in commands:
        assert program == "holdmq"
        if words == ["top"] or words[:2] == ["client", "list"]:
            continue  # the first ends by a key alone; the other's filters are a list, which nothing fits
        if "|" in words:
            words = words[: words.index("|")]
        if words[:2] in ASKING and "--dry-run" not in words:
            words = [*words, "--yes"]
        done = run_here(*words, *flags_of(stack))
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        for first, found in FINDS.items():
            if " ".join(words).startswith(first):
                assert found in done.stdout + done.stderr, (words, done.stdout, done.stderr)


def test_the_commands_of_topics_md_run(holdmq_stack: Callable[..., Stack]) -> None:
    run_page(holdmq_stack(services=("registry", "broker")), "topics.md", "sh")


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_the_pages_run(stack: Stack, page: str) -> None:
    meter = MqttClient(stack.mqtt_port, "meter-42", expiry_s=600)
    meter.subscribe("cmd/42")
    meter.subscribe("$share/billing/bills")
    retained = [
        "mosquitto_pub",
        "-p",
        str(stack.mqtt_port),
        "-q",
        "1",
        "-r",
        "-t",
        "devices/42/state",
        "-m",
        "on",
    ]
    subprocess.run(retained, check=True, timeout=30)
    run_page(stack, page, "sh", "text")


def test_top_s_groups_are_as_the_page_reads_them(stack: Stack) -> None:
    top = next(words for words in commands_of("docs/alarms.md", "sh") if "--json" in words)
    assert run_here("group", "create", "billing", *flags_of(stack)).returncode == 0
    done = run_here(*top[1 : top.index("|")], *flags_of(stack))
    groups: list[dict[str, Any]] = json.loads(done.stdout)["groups"]
    (jq,) = top[-1:]
    for name in jq.partition("{")[2].rstrip("}").split(","):
        assert all(name.strip() in group for group in groups)
