"""What PySpark finds of HoldMQ by itself; tests/integration/test_stats.py has a session that does."""

from __future__ import annotations

import importlib.util
import pkgutil
import runpy

import pytest
from pyspark.sql.datasource import DataSource

import pyspark_holdmq


def test_pyspark_finds_the_source_by_the_name_of_its_package() -> None:
    # As pyspark.sql.worker.lookup_data_sources looks for it.
    assert "pyspark_holdmq" in {module.name for module in pkgutil.iter_modules()}
    assert issubclass(pyspark_holdmq.DefaultSource, DataSource)
    assert pyspark_holdmq.DefaultSource.name() == "holdmq"


@pytest.mark.parametrize("lacking", ["pyarrow", "pyspark"])
def test_without_what_the_source_needs_other_sources_are_found_all_the_same(
    lacking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == lacking else find_spec(name)
    )
    assert "DefaultSource" not in runpy.run_path(str(pyspark_holdmq.__file__))
