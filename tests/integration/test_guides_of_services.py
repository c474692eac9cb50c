"""The examples of the pages on the load test and the console run, and give what the pages say."""

from __future__ import annotations

import datetime as dt
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
from deltalake import write_deltalake
from guides import examples_of
from processes import free_port, wait_until

from spark_streaming.tables import TPS_1S_TABLE

StackMaker = Callable[..., Any]
SMALL = {"--devices": "5", "--rate": "50", "--seconds": "1", "--ramp-s": "0.1", "--hold-s": "0.1"}
"""What a load on the pages becomes here: the same command, of a size that a test may have."""


def test_the_load_test_s_commands_run(holdmq_stack: StackMaker, tmp_path: Path) -> None:
    stack = holdmq_stack()
    block = examples_of("loadtest.md", "console")[0]
    for line in block.code.splitlines():
        program, *arguments = shlex.split(line.removeprefix("$ "))
        assert program == "holdmq"
        for option, small in SMALL.items():
            if option in arguments:
                arguments[arguments.index(option) + 1] = small
        done = subprocess.run(
            [sys.executable, "-m", "holdmq.cli", *arguments, "--target", f"127.0.0.1:{stack.mqtt_port}"],
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "run.json").read_text())
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")


def test_the_command_that_compares_servers_is_understood() -> None:
    program, *arguments = shlex.split(load_test_command("ingest_peers"))
    assert program == "python"
    done = subprocess.run(
        [sys.executable, *arguments, "--help"], capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 0, done.stderr
    assert all(option in done.stdout for option in arguments if option.startswith("--"))


def load_test_command(words: str) -> str:
    """The command of the page in which these words are."""
    lines = [line for e in examples_of("loadtest.md", "console") for line in e.code.splitlines()]
    (found,) = [line for line in lines if words in line]
    return found.removeprefix("$ ")


def test_idle_devices_are_measured_as_the_page_says(holdmq_stack: StackMaker) -> None:
    stack = holdmq_stack()
    program, *arguments = shlex.split(load_test_command("--devices 200000"))
    assert program == "holdmq"
    small = {**SMALL, "--admin": f"127.0.0.1:{stack.admin_ports['gateway']}"}
    for option, value in small.items():
        if option in arguments:
            arguments[arguments.index(option) + 1] = value
    done = subprocess.run(
        [
            *(sys.executable, "-m", "holdmq.cli", *arguments),
            *("--target", f"127.0.0.1:{stack.mqtt_port}", "--json"),
        ],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["memory"]["workers"] == 2


def test_a_storm_ends_as_the_page_says() -> None:
    program, *arguments = shlex.split(load_test_command("loadtest.bench.storm"))
    assert program == "python"
    for option, small in {"--clients": "60", "--publishers": "5", "--rate": "50"}.items():
        arguments[arguments.index(option) + 1] = small
    done = subprocess.run(
        [sys.executable, *arguments, "--settle-s", "1", "--sources"],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    found = json.loads(done.stdout[done.stdout.index("{") : done.stdout.rindex("}") + 1])
    assert found["connected"]["clients"] == 60, done.stdout + done.stderr
    assert found["back"]["clients"] == found["back"]["sessions_present"] == 60
    assert found["published"]["acknowledged"] == found["published"]["sent"] > 0
    assert found["published"]["unanswered"] == found["still_there"]["lost"] == 0
    assert found["gateway"]["worker_restarts_total"] == 0
    assert found["wills_seen"] == 0


def test_a_drain_ends_as_the_page_says() -> None:
    program, *arguments = shlex.split(load_test_command("loadtest.bench.drain"))
    assert program == "python"
    for option, small in {"--clients": "80", "--drain-rate": "40"}.items():
        arguments[arguments.index(option) + 1] = small
    done = subprocess.run(
        [sys.executable, *arguments, "--connections-max", "200", "--away-s", "0.5", "--sources"],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    found = json.loads(done.stdout[done.stdout.index("{") : done.stdout.rindex("}") + 1])
    assert found["sent_away"]["clients"] == 80, done.stdout + done.stderr
    assert found["gateway"]["exit_code"] == 0
    assert [list(heard.items()) for heard in found["farewells"].values()] == [
        *[[("closed by the server", 20)]] * 2,
        *[[("DISCONNECT 0x9D", 20)]] * 2,
    ]
    assert sum(found["back"].values()) == 80
    assert found["sessions_present"] == {
        "3.1.1 with a session": 20, "3.1.1 without": 0, "5 with a session": 20, "5 without": 0
    }  # fmt: skip
    assert found["messages"]["served"] == 40
    assert not found["lost"]


def write_counts(path: Path, rows: list[tuple[dt.datetime, str, int, int]]) -> None:
    """Give the statistics job's table these counts: second, topic, messages, bytes."""
    columns = [*zip(*rows, strict=True), [0] * len(rows), [0] * len(rows)]
    arrays = [
        pa.array(column, field.type) for column, field in zip(columns, TPS_1S_TABLE.schema, strict=True)
    ]
    write_deltalake(str(path), pa.Table.from_arrays(arrays, schema=TPS_1S_TABLE.schema), mode="append")


def shape(value: Any) -> Any:
    """What an answer is made of: names of objects, elements of lists, types of the rest."""
    if isinstance(value, dict):
        return {name: shape(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [shape(inner) for inner in value[:1]]
    return type(value).__name__


def test_the_console_answers_as_its_page_shows(holdmq_stack: StackMaker) -> None:
    port, admin_port = free_port(), free_port()
    stack = holdmq_stack(
        services=("registry", "broker"), **{"console.port": port, "console.admin_port": admin_port}
    )
    (example,) = [e for e in examples_of("console.md", "console") if "/api/v1/tps" in e.code]
    command, _, shown = example.code.partition("\n")
    second = dt.datetime.now(dt.UTC).replace(microsecond=0) - dt.timedelta(seconds=3)
    # Of minutes to come as well: whenever the console is asked, there are counts of that second.
    counts = [(second + dt.timedelta(seconds=i), "devices", 2000, 200_000) for i in range(400)]
    write_counts(stack.directory / "stats" / "tables" / "tps_1s", counts)
    stack.start("console", wait=False)
    path = re.search(r"curl -s '127\.0\.0\.1:8080(/[^']*)'", command)
    assert path is not None
    answers: list[Any] = []

    def is_complete() -> bool:
        try:
            answers.append(httpx.get(f"http://127.0.0.1:{port}{path[1]}", timeout=40).json())
        except httpx.TransportError:
            return False
        return bool(answers[-1].get("total")) and bool(answers[-1]["current"].get("topics"))

    wait_until(is_complete, "counts of this second")
    wanted = json.loads(shown.replace("{…}", json.dumps(answers[-1]["current"]["topics"])))
    assert shape(answers[-1]) == shape(wanted)
    (query,) = [e for e in examples_of("console.md", "console") if "/api/v1/sql" in e.code]
    asked = re.search(r"127\.0\.0\.1:8080(/[^']*)'.*--json '(.*?)'\n(\w+)\n\d+\n", query.code, re.DOTALL)
    assert asked is not None
    answer = httpx.post(f"http://127.0.0.1:{port}{asked[1]}", json=json.loads(asked[2]), timeout=60)
    assert answer.text.split() == [asked[3], str(sum(messages for _, _, messages, _ in counts))]
