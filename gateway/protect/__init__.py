"""What protects a worker: admission, bans, overload, rates of clients."""
