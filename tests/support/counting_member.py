"""A member of a group that adds up in a database of its own, by `SeenInSql`; run as a program.

It says with a line on its standard output that it has started, and writes a byte to a file for each call of
its handler: a call that its database knows already changes nothing there.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from pathlib import Path

from holdmq.client import Consumer, Message, SeenInSql, key_of

PATIENCE_S = 60.0


def connect(path: Path) -> sqlite3.Connection:
    """The database of all members; each handler's call has a connection of its own."""
    return sqlite3.connect(path, timeout=PATIENCE_S)


def make(path: Path, seen: SeenInSql) -> None:
    """Make its tables."""
    with connect(path) as database:
        seen.create(database)
        database.execute("CREATE TABLE sums (total INTEGER, messages INTEGER)")
        database.execute("INSERT INTO sums VALUES (0, 0)")


async def main(path: Path, calls: Path, registry: str, group: str, topic: str) -> None:
    """Handle messages until the process is killed."""
    seen = SeenInSql(group)
    with calls.open("ab", buffering=0) as called:

        def handle(message: Message) -> None:
            called.write(b".")
            database = connect(path)
            try:
                with database:
                    database.execute("BEGIN IMMEDIATE")
                    if seen.first(database, key_of(message)):
                        database.execute(
                            "UPDATE sums SET total = total + ?, messages = messages + 1", (int(message.body),)
                        )
            finally:
                database.close()

        async with Consumer([registry], group, handle, [topic], start="earliest", concurrency=4):
            print("started", flush=True)
            await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:]))
