"""People and programs that may: accounts, tokens, sessions, roles, and the audit of what they changed."""
