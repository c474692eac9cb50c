"""The broker's small files of state: how a change is planned, written, and then takes effect."""
