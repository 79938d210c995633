"""The version, in a module of its own so that building needs no import of torch."""

__version__ = "0.2.0"
