"""The leadership of replicated shards: a port to an existing coordinator, and its clients.

`api` is what replication needs of a coordinator. `memory` has one without processes, for simulations and
tests.
"""
