"""Who runs each fenced block of README.md, ARCHITECTURE.md and docs/, in the order of a page.

A block without its row here fails `tests/docs/test_blocks.py`, which itself understands what no test runs.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]

DRAWING: Final = "a drawing"
COMMANDS: Final = "commands: the command line, or the benchmark, knows each with its options"
CONFIGURATION: Final = "a configuration: it is loaded"
VALUES: Final = "values of the chart: its schema takes them"
MANIFEST: Final = "an object of Kubernetes: it is parsed, with its kind"
QUERY: Final = "SQL of the console: DuckDB runs it on a table of that schema"
KEYS: Final = "access keys: they are loaded"
OF_OTHERS: Final = "of another program, which tests do not have: the shell parses it"
TEXT_OF_OTHERS: Final = "a file of another program, which tests do not have"
CALL: Final = "a call of the SDK: it takes these arguments"
MAKE: Final = "the Makefile has the target"

_GUIDES = "integration/test_guides.py::test_the_examples_of_a_page_run_one_after_the_other"
_ACCESS = "integration/test_access.py::test_the_examples_of_access_md_run"
_LISTENERS = "integration/test_listeners.py::test_the_examples_of_listeners_md_run"
_SECURITY = "integration/test_security.py::test_the_commands_and_the_configuration_of_the_guide_work"
_SERVICES = "integration/test_guides_of_services.py::"
_LOADTEST = f"{_SERVICES}test_the_load_test_s_commands_run"
_SPARK = "integration/test_guides_of_spark.py::test_an_example_gives_what_the_page_says"
_CLUSTERS = "integration/test_clusters.py::test_the_session_of_the_page_goes_as_it_shows"
_CLUSTER = "support/spark_cluster.py::_lines"
_CONTROL = "integration/test_gateway_control.py::test_what_the_page_shows_runs"
_DEVICES = "integration/test_guides_of_devices.py::test_the_commands_of_the_pages_run"

BLOCKS: Final[dict[str, list[tuple[str, str]]]] = {
    "README.md": [
        ("text", DRAWING),
        ("sh", MAKE),
        ("sh", "integration/test_guides_of_devices.py::test_the_first_message_of_the_readme_arrives"),
        ("toml", CONFIGURATION),
    ],
    "ARCHITECTURE.md": [("text", DRAWING)],
    "docs/access.md": [
        *[(language, _ACCESS) for language in ("console", "acl", "toml", "console")],
        *[(language, _ACCESS) for language in ("python", "acl", "toml", "text", "python", "toml", "python")],
    ],
    "docs/alarms.md": [
        ("sh", _DEVICES),
        ("sh", _DEVICES),
        ("toml", "holdmq/config/test_alarms.py::test_the_pages_example_is_a_configuration"),
        ("json", "docs/test_blocks.py::test_the_alarm_of_alarms_md_has_the_members_of_a_notice"),
    ],
    "docs/clients.md": [("text", COMMANDS), ("text", _DEVICES)],
    "docs/cluster.md": [("sh", COMMANDS), ("sh", COMMANDS), ("console", _CLUSTERS), ("toml", CONFIGURATION)],
    "docs/concepts.md": [("text", DRAWING)],
    "docs/console.md": [
        ("sql", QUERY),
        ("bash", "docs/test_blocks.py::test_the_accounts_of_console_md_are_made"),
        ("console", f"{_SERVICES}test_the_console_answers_as_its_page_shows"),
        ("console", f"{_SERVICES}test_the_console_answers_as_its_page_shows"),
    ],
    "docs/consumers.md": [
        *[("python", _GUIDES)] * 3,
        ("sh", COMMANDS),
        ("py", CALL),
        *[("python", _GUIDES)] * 4,
    ],
    "docs/coordination.md": [
        ("toml", CONFIGURATION),
        ("sh", OF_OTHERS),
        ("sh", OF_OTHERS),
        ("toml", CONFIGURATION),
        ("yaml", "helm/test_copies.py::test_brokers_may_change_leases_of_their_namespace_and_nothing_else"),
    ],
    "docs/delay.md": [("python", _GUIDES)],
    "docs/development.md": [("sh", OF_OTHERS)],
    "docs/groups.md": [("console", _GUIDES), ("python", _GUIDES), ("console", _GUIDES)],
    "docs/idempotence.md": [("python", _GUIDES)],
    "docs/kubernetes.md": [
        ("sh", COMMANDS),
        ("yaml", VALUES),
        ("sh", OF_OTHERS),
        ("yaml", VALUES),
        ("yaml", VALUES),
        ("sh", OF_OTHERS),
        ("yaml", TEXT_OF_OTHERS),
        ("sh", OF_OTHERS),
        ("yaml", MANIFEST),
        ("sh", OF_OTHERS),
    ],
    "docs/listeners.md": [
        ("console", _LISTENERS),
        ("toml", _LISTENERS),
        ("console", _LISTENERS),
        ("python", _LISTENERS),
        ("haproxy", TEXT_OF_OTHERS),
    ],
    "docs/loadtest.md": [
        ("console", _LOADTEST),
        *[("console", COMMANDS)] * 7,
        ("console", f"{_SERVICES}test_idle_devices_are_measured_as_the_page_says"),
        ("console", COMMANDS),
        ("console", COMMANDS),
        ("console", f"{_SERVICES}test_a_storm_ends_as_the_page_says"),
        ("console", f"{_SERVICES}test_a_drain_ends_as_the_page_says"),
        ("console", COMMANDS),
    ],
    "docs/messages.md": [("python", _GUIDES), ("console", _GUIDES)],
    "docs/mqtt.md": [("toml", CONFIGURATION)],
    "docs/operating.md": [
        ("sh", COMMANDS),
        ("toml", CONFIGURATION),
        ("console", COMMANDS),
    ],
    "docs/performance.md": [*[("sh", COMMANDS)] * 5, ("console", COMMANDS)],
    "docs/producer.md": [("python", _GUIDES)] * 3,
    "docs/protection.md": [
        ("toml", CONFIGURATION),
        ("console", _CONTROL),
        ("toml", CONFIGURATION),
        ("console", _CONTROL),
    ],
    "docs/quotas.md": [("console", _GUIDES)],
    "docs/replication.md": [("sh", COMMANDS), ("toml", CONFIGURATION)],
    "docs/retained.md": [("text", _DEVICES)],
    "docs/retry.md": [
        ("text", DRAWING),
        ("python", _GUIDES),
        ("python", _GUIDES),
        ("sh", COMMANDS),
    ],
    "docs/sdk.md": [("python", "integration/test_sdk.py::test_the_guide_s_examples_run")] * 3,
    "docs/security.md": [
        ("bash", _SECURITY),
        ("toml", _SECURITY),
        ("bash", COMMANDS),
        ("python", "docs/test_blocks.py::test_the_client_of_security_md_is_made"),
        ("toml", KEYS),
    ],
    "docs/sessions.md": [("text", _DEVICES)],
    "docs/shared.md": [("python", "integration/test_shared.py::test_the_guide_s_examples_run")] * 3,
    "docs/spark.md": [
        ("sql", _SPARK),
        ("python", _SPARK),
        *[("sql", _SPARK)] * 3,
        ("python", _SPARK),
        ("sh", OF_OTHERS),
        *[("console", _CLUSTER)] * 3,
        ("sh", OF_OTHERS),
        *[("python", _SPARK)] * 2,
        ("sh", OF_OTHERS),
        ("console", _CLUSTER),
        *[("python", _SPARK)] * 7,
    ],
    "docs/tables.md": [*[("python", _GUIDES)] * 4, ("console", _GUIDES)],
    "docs/tenants.md": [
        ("python", _GUIDES),
        ("console", _GUIDES),
        ("bash", COMMANDS),
        ("py", CALL),
        ("toml", CONFIGURATION),
        ("console", _GUIDES),
    ],
    "docs/topics.md": [
        *[("sh", "integration/test_guides_of_devices.py::test_the_commands_of_topics_md_run")] * 3,
        ("python", "integration/test_topics.py::test_the_guide_s_example_runs"),
    ],
    "docs/valkey.md": [
        ("sh", COMMANDS),
        ("sh", OF_OTHERS),
        ("toml", CONFIGURATION),
        ("text", "holdmq/cli/test_kv.py::rule_of_the_guide"),
        ("sh", COMMANDS),
    ],
}
"""Language and who runs it: one of the above, or a test below tests/."""


class Block(NamedTuple):
    """A fenced block."""

    page: str
    line: int
    language: str
    text: str


def pages() -> list[Path]:
    """All pages that people read."""
    return [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks_of(path: Path) -> list[Block]:
    """The fenced blocks of a page in their order, those in lists without their indentation."""
    text = path.read_text(encoding="utf-8")
    found = re.finditer(r"^( *)```(\S*)\n(.*?)^\1```$", text, re.DOTALL | re.MULTILINE)
    page = str(path.relative_to(ROOT))
    return [
        Block(
            page,
            text.count("\n", 0, block.start()) + 1,
            block[2],
            re.sub(rf"^{block[1]}", "", block[3], flags=re.MULTILINE),
        )
        for block in found
    ]


def words_of(block: Block, *, options: bool = True) -> list[list[str]]:
    """The commands of a block, word by word.

    Of a synopsis (`text`) without what it says behind three spaces; `[…]` only with `options`, N is a number.
    """
    lines = block.text.replace("\\\n", " ").splitlines()
    if block.language == "text":
        lines = re.sub(r"\n +\[", " [", block.text).splitlines()
        lines = [line.partition("   ")[0] for line in lines]
        lines = [re.sub(r"[\[\]]" if options else r"\[.*?\]", "", line) for line in lines]
        lines = [re.sub(r"\bN\b", "10", line) for line in lines]
    if block.language == "console":
        lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    return [words for line in lines if (words := shlex.split(line, comments=True))]
