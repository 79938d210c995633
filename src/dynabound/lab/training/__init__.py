"""One run in memory."""
