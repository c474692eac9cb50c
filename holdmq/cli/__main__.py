"""``python -m holdmq.cli`` is ``holdmq``."""

from __future__ import annotations

from holdmq.cli import main

if __name__ == "__main__":
    main()
