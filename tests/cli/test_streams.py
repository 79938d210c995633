"""Output in encodings that lack our characters."""

import io
import sys

import pytest

from dynabound.cli import app, output


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["bounds", "--certificate"], "the step size alpha/sqrt t"),
        (["theory", "--help"], "Initial step size alpha."),
        (["train", "digits", "--optimizer=αdam"], "optimizer='alphadam': must be"),
    ],
)
def test_other_encodings_get_ascii(encoding, arguments, expected, monkeypatch):
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, io.TextIOWrapper(io.BytesIO(), encoding))
    output.fall_back_to_ascii()
    with pytest.raises(SystemExit):
        app(arguments)
    shown = b"".join(stream.buffer.getvalue() for stream in (sys.stdout, sys.stderr)).decode(encoding)
    assert expected in shown
    assert "Traceback" not in shown
