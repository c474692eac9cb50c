"""The web console: live throughput of every topic, the state of the cluster, and the HTTP API behind both."""
