"""Consumer groups: settings, members, the leases of queues and confirmed offsets."""
