"""What quotas decide, without IO."""
