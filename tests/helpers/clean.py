"""What every command's end has in common, whatever it was given."""


def assert_clean(result, message):
    """Assert that a command ended without a traceback or an escape sequence, and with one line if it refused."""
    assert result.exception is None or isinstance(result.exception, SystemExit), message
    assert "Traceback" not in result.output, message
    assert "internal error" not in result.output, message
    assert "\x1b" not in result.output, message
    if result.exit_code == 1:
        assert result.stderr.startswith("dynabound: "), message
        assert len(result.stderr.splitlines()) == 1, message
