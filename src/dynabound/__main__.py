"""``python -m dynabound`` and the ``dynabound`` command."""

import os
import signal
import sys


def main() -> None:
    """Run the command line, or say which extra it needs."""
    try:
        from dynabound.cli import app, output
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("dynabound"):
            raise
        from dynabound import _extras, doctor

        if sys.argv[1:2] == ["doctor"]:  # it reports what is missing, so it must run without it
            doctor.main("--json" in sys.argv)
            sys.exit()
        sys.exit(f"dynabound: {_extras.missing(error, _extras.of_command(next(iter(sys.argv[1:]), None)))}")
    os.environ["PYTHONSAFEPATH"] = "1"  # the processes that are started here import no files of the working directory
    signal.signal(signal.SIGTERM, output.terminate)
    output.log_to_stderr()
    output.fall_back_to_ascii()
    app()


if __name__ == "__main__":
    main()
