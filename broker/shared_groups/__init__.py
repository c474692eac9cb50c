"""Consumer groups whose members share queues: each record is handed to one of them, with a deadline."""
