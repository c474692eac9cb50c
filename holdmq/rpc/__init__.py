"""The asyncio shells over holdmq.wire: one connection, the server, the reconnecting client."""
