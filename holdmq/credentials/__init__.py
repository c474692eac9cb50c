"""Who may connect and what they may do: access keys, permissions, certificates."""
