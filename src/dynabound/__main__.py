"""``python -m dynabound`` and the ``dynabound`` command."""

import sys

from dynabound import _extras


def main() -> None:
    """Run the command line, or say which extra it needs."""
    try:
        from dynabound.cli import app, errors, streams
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("dynabound"):
            raise
        if sys.argv[1:2] == ["doctor"]:  # it says what is missing, so it needs none of it
            from dynabound import doctor

            doctor.main("--json" in sys.argv)
            sys.exit()
        sys.exit(f"dynabound: {_extras.missing(error, 'lab')}")
    errors.exit_on_interrupt()
    errors.log_to_stderr()
    streams.fall_back_to_ascii()
    app()


if __name__ == "__main__":
    main()
