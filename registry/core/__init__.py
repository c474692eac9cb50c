"""The registry without event loop, socket, file or clock."""
