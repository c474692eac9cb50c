"""What an operator asks of all gateways, asked of each worker that is connected to this broker."""
