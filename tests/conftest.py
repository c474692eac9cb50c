"""What every test stands on: no configuration leaks in, no store stays, what takes longest begins first."""

from __future__ import annotations

import asyncio.constants
import ctypes
import importlib
import os
import shutil
import sys
import tomllib
import traceback
from collections.abc import Iterator
from typing import Final

import pytest
import structlog
from hypothesis import HealthCheck, settings

SYSTEM: Final = (
    "integration",
    "faults",
    "packaging",
    "helm",
    "loadtest",
    "console/test_analysis_page.py",
    "console/test_app.py",
    "console/test_page.py",
    "console/test_scripted_pages.py",
    "console/test_walk.py",
    "spark_streaming/source",
    "spark_streaming/job",
    "broker/groups/test_offsets_processes.py",
    "broker/replication/test_simulation.py",
    "broker/topics/test_crash.py",
    "holdmq/cli",
    "holdmq/client",
    "holdmq/coordination/test_configured.py",
    "holdmq/coordination/test_conformance.py",
    "holdmq/coordination/test_etcd_faults.py",
    "holdmq/coordination/test_etcd_security.py",
    "holdmq/coordination/test_kubernetes.py",
    "holdmq/service/test_process.py",
    "storage/kv/test_valkey_servers.py",
    "storage/log/test_bounds.py",
    "storage/log/test_crashes.py",
    "storage/log/test_power_loss.py",
    "storage/log/test_recovery.py",
    "storage/log/test_store.py::test_ten_thousand_queues_are_written_read_and_found_again",
    "storage/log/tables/test_tables.py::test_tables_are_exact_across_kills",
    "storage/log/timer/test_timer_killed.py",
)
"""Directories, modules and tests below this directory whose tests are marked `system`; all others are not.

They start whole services, browsers or Spark, kill processes, or crash a disk at each step: minutes, where
the others together take two. `make test` leaves them to `make test-system`.
"""

ON_KV: Final = (
    "broker/alerts",
    "broker/app",
    "broker/groups",
    "broker/joining",
    "broker/kernel",
    "broker/mqtt_shares",
    "broker/produce/test_publishes_once.py",
    "broker/produce/test_requests.py",
    "broker/reading",
    "broker/retained",
    "broker/retry",
    "broker/sessions",
    "broker/shared_groups",
    "broker/tables",
    "broker/topics",
    "console/test_walk.py",
    "faults",
    "gateway/access",
    "gateway/deliver",
    "gateway/edge",
    "gateway/observe",
    "gateway/persistent",
    "gateway/protect",
    "gateway/publish",
    "gateway/worker",
    "holdmq/cli",
    "holdmq/client/test_dead_letters.py",
    "holdmq/client/test_groups.py",
    "holdmq/client/test_pages.py",
    "holdmq/client/test_shared_consumer.py",
    "integration",
    "loadtest",
    "spark_streaming/job/test_backlog.py",
    "spark_streaming/source",
)
"""What runs on the key-value engine as well (`make test-kv`): all that starts a broker, without its cores."""

OF_THE_LOG: Final = (
    "broker/groups/test_offsets.py::test_a_store_with_records_does_not_start_without_its_offsets",
    "broker/groups/test_offsets.py::test_a_write_that_fails_is_told_counted_and_tried_again",
    "broker/groups/test_offsets_processes.py",
    "broker/groups/test_settings.py::test_a_store_with_records_does_not_start_without_its_groups",
    "broker/groups/test_settings.py::test_a_write_that_fails_changes_nothing_and_says_so",
    "broker/mqtt_shares/test_requests.py::test_what_the_log_refused_of_settled_messages_is_written_when_it_is_said_again",
    "broker/mqtt_shares/test_requests.py::test_what_the_log_refuses_to_be_taken_is_handed_out_when_it_does_not",
    "broker/reading/test_queries.py::test_a_damaged_message_is_told_as_corrupt",
    "broker/retry/test_dead_letters.py::test_a_crash_before_the_marks_are_saved_sends_nothing_twice",
    "broker/retry/test_dead_letters.py::test_a_damaged_file_is_named",
    "broker/retry/test_dead_letters.py::test_nothing_is_done_before_it_is_known_what_was_sent_again",
    "broker/retry/test_moves.py::test_a_refused_append_is_told_and_the_next_try_is_no_repeat",
    "broker/shared_groups/test_limits.py::test_a_member_without_room_does_not_hold_up_the_others",
    "broker/shared_groups/test_limits.py::test_a_start_without_its_snapshot_refuses_when_the_log_does_not_have_it_all",
    "broker/shared_groups/test_limits.py::test_while_the_store_refuses_nothing_is_acknowledged_and_nothing_begins",
    "broker/shared_groups/test_requests_machine.py",
    "broker/tables/test_requests.py::test_a_database_that_fails_is_told_to_who_reads_and_to_who_waits",
    "broker/tables/test_requests.py::test_a_read_waits_until_the_table_shows_what_was_acknowledged_before",
    "broker/tables/test_requests.py::test_a_refused_write_is_told_and_its_request_may_come_again",
    "broker/tables/test_requests.py::test_a_repeat_waits_for_the_index_of_ids_to_be_complete_after_a_start",
    "broker/tables/test_requests.py::test_an_expected_version_is_compared_with_changes_that_the_table_does_not_show_yet",
    "broker/tables/test_requests.py::test_changes_that_are_applied_together_are_told_once_per_key",
    "broker/tables/test_requests.py::test_large_changes_are_told_in_several_pushes",
    "broker/tables/test_requests.py::test_reads_wait_for_tables_that_are_built_again_at_start",
    "broker/tables/test_requests.py::test_too_many_reads_that_wait_are_busy",
    "broker/topics/test_changes.py::test_a_shorter_retention_raises_the_first_offset_of_its_topic_only",
    "broker/topics/test_crash.py",
    "broker/topics/test_requests.py::test_a_corrupt_file_is_refused_with_a_sentence",
    "faults/test_bad_input.py::test_a_corrupt_topic_json_is_refused_by_name_and_its_backup_only_taken_when_told",
    "faults/test_bad_input.py::test_a_data_directory_of_a_newer_format_is_refused_untouched",
    "faults/test_bad_input.py::test_a_second_broker_on_the_same_directory_is_refused",
    "faults/test_store_killed.py",
    "faults/test_sync_flush.py",
    "holdmq/cli/test_examples.py",
    "holdmq/cli/test_log.py",
    "holdmq/cli/test_top.py::test_a_segment_that_is_written_is_shown",
    "spark_streaming/source/test_reader.py::test_retention_that_overtakes_the_checkpoint_fails_the_query_or_is_counted",
)
"""Of ON_KV what looks into the log engine's own files or threads, or has its disk or its size fill up."""

OF_FILES: Final = (
    "broker/app/test_order_refusals.py::test_with_a_log_order_readers_open",
    "broker/groups/test_offsets.py::test_a_store_with_records_does_not_start_without_its_offsets",
    "broker/groups/test_offsets.py::test_a_log_that_never_gets_on_disk_is_told_to_who_waits",
    "broker/groups/test_offsets.py::test_a_write_that_fails_is_told_counted_and_tried_again",
    "broker/groups/test_offsets.py::test_no_offset_is_saved_before_the_log_up_to_it_is_on_disk",
    "broker/groups/test_settings.py::test_a_store_with_records_does_not_start_without_its_groups",
    "broker/groups/test_settings.py::test_a_write_that_fails_changes_nothing_and_says_so",
    "broker/mqtt_shares/test_requests.py::test_a_start_from_a_snapshot_goes_on_where_it_was",
    "broker/reading/test_queries.py::test_a_moment_has_its_place_in_the_whole_log",
    "broker/replication",
    "broker/retry/test_dead_letters.py::test_a_crash_before_the_marks_are_saved_sends_nothing_twice",
    "broker/retry/test_dead_letters.py::test_a_damaged_file_is_named",
    "broker/retry/test_dead_letters.py::test_nothing_is_done_before_it_is_known_what_was_sent_again",
    "broker/shared_groups/test_limits.py::test_a_start_without_its_snapshot_refuses_when_the_log_does_not_have_it_all",
    "broker/shared_groups/test_limits.py::test_what_a_filter_rejected_is_not_looked_at_again_after_a_restart",
    "broker/shared_groups/test_requests.py::test_a_snapshot_knows_what_the_log_knew",
    "broker/topics/test_requests.py::test_a_corrupt_file_is_refused_with_a_sentence",
)
"""Of the broker's rooms what looks into its files of state, expects a log that nobody has written yet, or a
snapshot as soon as there is news."""

LONGEST_FIRST: Final = (
    "integration/test_stats_killed.py",
    "integration/test_stats_cluster.py",
    "integration/test_stats.py",
    "integration/test_guides_of_spark.py",
    "integration/test_security.py",
    "storage/log/test_power_loss.py",
    "integration/test_guides.py",
    "integration/test_sessions.py",
    "spark_streaming/job/test_write_class_archive.py",
    "faults/test_broker_killed.py",
    "helm/test_valid.py",
    "integration/test_guides_of_services.py",
    "integration/test_gateway.py",
    "faults/test_store_killed.py",
    "spark_streaming/source",
    "spark_streaming/job",
    "holdmq/coordination/test_etcd_faults.py",
    "storage/log/test_crashes.py",
    "storage/log/test_bounds.py",
    "holdmq/client/test_sender.py",
    "integration/test_groups.py",
    "integration/test_listeners.py",
    "broker/groups/test_offsets_processes.py",
    "integration/test_retry.py",
    "packaging/test_distribution.py",
    "console",
    "faults",
    "integration",
    "holdmq/cli",
    "holdmq/wire/test_untrusted.py",
    "storage/log/test_store.py",
    "storage/log/test_recovery.py",
    "storage/log/tables/test_tables.py",
    "broker/groups/test_offsets.py",
    "broker/shared_groups/test_requests_machine.py",
    "gateway/persistent/test_sessions.py",
    "gateway/access/test_asking.py",
    "storage",
)
"""Modules and directories below this one, as `--dist loadfile` hands them out; then come the others.

Only an order: short modules at the end fill what the long ones leave of the processes' time.
"""

# An example that others on this machine hold up is no failure. Every run has the same examples, so that what
# it says is about the change that it is run for; HOLDMQ_TEST_EXPLORE=1 looks for others. Tests take these as
# they are imported.
settings.register_profile(
    "unhurried",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="HOLDMQ_TEST_EXPLORE" not in os.environ,
)
settings.load_profile("unhurried")

ORIGIN_FRAMES: Final = 4
"""Frames that asyncio's debug mode notes of who made a future, a callback or a coroutine."""

_M_MMAP_THRESHOLD: Final = -3
_MMAP_THRESHOLD_BYTES: Final = 256 << 10


def pytest_configure() -> None:
    # Each broker in this process reserves tables of some MiB that it hardly touches. Once one has given its
    # own back, glibc serves the next from its heap and clears all of it: 40 ms of CPU for each of hundreds.
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)
    _note_short_origins()


def _note_short_origins() -> None:
    """Keep asyncio's debug mode from reading all that is below a test, for each future and callback.

    That is fifty frames of pytest, and a stat of each of their files: 0.1 ms, more than what is tested.
    """
    asyncio.constants.DEBUG_STACK_DEPTH = ORIGIN_FRAMES
    # Futures in C ask this function for all frames, and got hold of it when asyncio was imported.
    traceback.extract_stack.__defaults__ = (None, ORIGIN_FRAMES)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--compiled",
        action="store_true",
        help="refuse to run unless what mypyc compiles is imported compiled (make test-compiled)",
    )
    parser.addoption(
        "--engine",
        choices=("log", "kv"),
        default="log",
        help="the storage engine of brokers; kv runs the tests that ON_KV names (make test-kv)",
    )

    parser.addoption(
        "--state-in-log",
        action="store_true",
        help="brokers have their state files in their log; runs the tests of the broker (make test-state)",
    )


def pytest_sessionstart(session: pytest.Session) -> None:
    config = session.config
    is_controller = bool(config.getoption("numprocesses", None)) and not hasattr(config, "workerinput")
    if config.getoption("engine") == "kv" and not is_controller:
        import tested_engine  # and a client of a key-value server, which tests of the log engine need not

        tested_engine.begin()
        config.add_cleanup(tested_engine.end)
    if config.getoption("state_in_log"):
        import state_in_log

        state_in_log.choose()
        config.add_cleanup(state_in_log.choose_files)
    if config.getoption("compiled"):
        _refuse_interpreted(config)


def _refuse_interpreted(config: pytest.Config) -> None:
    settings_of_the_project = tomllib.loads((config.rootpath / "pyproject.toml").read_text())
    hook = settings_of_the_project["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["mypyc"]
    for path in hook["include"]:
        module = importlib.import_module(path.strip("/").removesuffix(".py").replace("/", "."))
        if not str(module.__file__).endswith(".so"):
            raise pytest.UsageError(f"{module.__name__} is not compiled: {module.__file__}")


def _is_below(item: pytest.Item, path: str) -> bool:
    name = item.nodeid.removeprefix("tests/")
    return name == path or name.startswith((f"{path}/", f"{path}::", f"{path}["))


def _is_on_kv(item: pytest.Item) -> bool:
    return (
        "/core/" not in item.nodeid
        and any(_is_below(item, path) for path in ON_KV)
        and not any(_is_below(item, path) for path in OF_THE_LOG)
    )


def _is_on_state_in_log(item: pytest.Item) -> bool:
    return (
        "/core/" not in item.nodeid
        and _is_below(item, "broker")
        and not any(_is_below(item, path) for path in (*SYSTEM, *OF_FILES))
    )


# Before pytest's own, which chooses by markers.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        return next(
            (i for i, first in enumerate(LONGEST_FIRST) if _is_below(item, first)), len(LONGEST_FIRST)
        )

    for item in items:
        if any(_is_below(item, path) for path in SYSTEM):
            item.add_marker("system")
    if config.getoption("engine") == "kv":
        left = [item for item in items if not _is_on_kv(item)]
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if _is_on_kv(item)]
    if config.getoption("state_in_log"):
        left = [item for item in items if not _is_on_state_in_log(item)]
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if _is_on_state_in_log(item)]
    items.sort(key=place)


@pytest.fixture(scope="module", autouse=True)
def _nothing_of_spark_stays() -> Iterator[None]:
    """End what a Python worker of Spark keeps as long as it lives.

    Who tries for ever to reach brokers that are gone draws random numbers, which disturbs hypothesis; and a
    worker's log is set up for Spark.
    """
    yield
    link = sys.modules.get("spark_streaming.source.link")
    if link is not None:
        link.close_links()
        structlog.reset_defaults()
    writer = sys.modules.get("spark_streaming.source.writer")
    if writer is not None:
        writer.close_producers()


@pytest.fixture(autouse=True)
def _no_configuration_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in [name for name in os.environ if name.startswith("HOLDMQ_")]:
        monkeypatch.delenv(variable)


@pytest.fixture(scope="module", autouse=True)
def _directories_of_the_module(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """What a module's own fixtures wrote goes with it, as `tmp_path` with its test: stores are large."""
    failed, base = request.session.testsfailed, tmp_path_factory.getbasetemp()
    before = set(base.iterdir())
    yield
    if request.session.testsfailed == failed:
        for path in set(base.iterdir()) - before:
            if path.is_symlink():
                path.unlink()
            else:
                shutil.rmtree(path, ignore_errors=True)
        if request.config.getoption("engine") == "kv":
            sys.modules["tested_engine"].forget()
