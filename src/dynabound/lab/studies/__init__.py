"""Which runs a study needs, and running them."""
