"""The name service: which brokers live, where they are, and which queues of which topics they hold.

`registry.core.tables` is the memory, `registry.server` the RPC over it, `registry.main` the process.
Of routes registries tell each other nothing: brokers register with every one of them. `registry.watching`
raises alarms for processes that died, and asks the other registries for that.
"""
