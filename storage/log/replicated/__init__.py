"""A log that is one copy of several: raw reads for the others, and what is done to it while it is closed."""
