"""Access keys, permissions and certificates: they decide which clients may connect and what each may do."""
