"""The leadership of replicated shards: a port to an existing coordinator, and its clients.

`api` is what replication needs of a coordinator; `etcd` is the client of etcd, over `etcd_gateway`;
`kubernetes` the one of Kubernetes, over `kubernetes_api`, of what is in a `lease_object`. `configured` makes
the one that the configuration names. `memory` has a coordinator without processes, for simulations and tests.
"""
