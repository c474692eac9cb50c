"""The command ``holdmq``.

Every command takes ``--help`` (with an example), ``--json``, ``--config`` and ``--set``; exit codes are
0, 1 failed, 2 used wrongly; an error is one sentence on standard error, never a traceback.
"""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

from holdmq.cli.loading import uncollected


def main() -> NoReturn:
    """Run the command line and exit: 0, 1 failed, 2 used wrongly."""
    with uncollected():
        from holdmq.cli.app import main as run
    run()


def installed() -> NoReturn:
    """Run the command line as the installed script does: in a checkout with its compiled modules."""
    root = Path(__file__).parents[2]
    if (root / "build").is_dir():
        from holdmq.service.build import begin_compiled

        begin_compiled(root)
    main()


__all__ = ["installed", "main"]
