"""State files of the broker's rooms, kept in the log: what makes them, and a disk that has them."""
