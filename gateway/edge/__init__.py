"""The connections of clients: sockets, TLS, WebSocket, the PROXY protocol, how they end."""
