"""The laboratory: data, models and runs. Needs the extra ``lab``."""
