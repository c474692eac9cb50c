"""The table of readers, without IO."""
