"""What pytest must know of this folder."""

collect_ignore_glob = ["helpers/*", "golden/*"]
