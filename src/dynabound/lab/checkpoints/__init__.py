"""One run's state on disk."""
