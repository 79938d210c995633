"""The studies: which runs each of them needs, and how they are run."""
