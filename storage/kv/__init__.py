"""The key-value engine: a store whose bytes are in Valkey or Redis, behind `storage.api`."""
