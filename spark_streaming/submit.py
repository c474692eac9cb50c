"""The job as spark-submit runs it, on any master: the file that it is given, or a SparkApplication names.

::

    PYSPARK_PYTHON=/opt/holdmq/bin/python spark-submit --master spark://host:7077 \\
        /opt/holdmq/lib/python3.11/site-packages/spark_streaming/submit.py --config holdmq.toml --once

Options and exit codes are those of ``holdmq stats``.
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys


def main() -> None:
    """Run ``holdmq stats`` with this process's arguments; ends the process."""
    here = os.path.dirname(os.path.abspath(__file__))
    # Python looks for modules beside the file that it runs; those there are not modules by themselves.
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != here]
    sys.argv[1:1] = ["stats"]
    if importlib.util.find_spec("holdmq") is None:
        sys.exit(
            f"error: HoldMQ is not installed in {sys.executable}, which spark-submit runs; "
            "set PYSPARK_PYTHON to the Python that has it"
        )
    runpy.run_module("holdmq.cli", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
