"""Names that users choose, and what they may be."""
