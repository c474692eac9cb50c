"""Which segments may go, as a pure decision."""
