"""The record, the unit of the log: its layout, batches, columns and tags."""
