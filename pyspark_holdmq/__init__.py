"""What PySpark looks for: it imports every package named ``pyspark_…`` and registers its ``DefaultSource``.

So ``format("holdmq")`` works in every session whose Python has HoldMQ installed. PySpark does so when any
source written in Python is first asked for: without what our source needs there is none of ours, and the
others still work.
"""

from __future__ import annotations

import importlib.util

__all__: list[str] = []

if all(importlib.util.find_spec(name) for name in ("pyarrow", "pyspark")):
    from spark_streaming.source import HoldMQDataSource as DefaultSource

    __all__ += ["DefaultSource"]
