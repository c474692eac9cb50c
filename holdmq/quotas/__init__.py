"""Limits of a tenant, a user or an access key: what they are, and how rates are kept (docs/quotas.md)."""
