"""``python -m dynabound`` and the ``dynabound`` command."""

import sys

from dynabound import _interrupt


def main() -> None:
    """Run the command line, or say which extra it needs."""
    _interrupt.exit_at_once()
    try:
        from dynabound.cli import app, errors, streams
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("dynabound"):
            raise
        from dynabound import _extras, doctor

        if sys.argv[1:2] == ["doctor"]:  # it reports what is missing, so it must run without it
            doctor.main("--json" in sys.argv)
            sys.exit()
        sys.exit(f"dynabound: {_extras.missing(error, 'lab')}")
    streams.open_closed()
    errors.log_to_stderr()
    streams.fall_back_to_ascii()
    app()


if __name__ == "__main__":
    main()
