"""What clients receive: subscriptions, live delivery, catching up, shares, replays, retained messages."""
