"""The name service: which brokers live, where they are, and which queues of which topics they hold.

`registry.core.tables` is the memory, `registry.server` the RPC over it, `registry.main` the process.
Registries know nothing of each other: brokers register with every one of them.
"""
