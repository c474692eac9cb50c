"""Quotas of tenants, users and access keys: kept, told to gateways, and asked by the rooms they limit."""
