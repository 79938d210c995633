"""``python -m dynabound`` and the ``dynabound`` command."""

import sys


def main() -> None:
    """Run the command line, or say which extra it needs."""
    try:
        from dynabound.cli import app
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("dynabound"):
            raise
        sys.exit(f"dynabound: {error.name} is missing: the commands need pip install 'dynabound[lab]'")
    app()


if __name__ == "__main__":
    main()
