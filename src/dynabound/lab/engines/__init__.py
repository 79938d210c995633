"""Where many runs execute: local processes or Ray."""
