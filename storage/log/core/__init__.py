"""Layout and decisions of the log engine: pure, so that every crash is a unit test."""
