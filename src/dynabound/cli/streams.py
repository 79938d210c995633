"""Standard streams that are closed, or whose encodings lack some of our characters, which are replaced by ASCII."""

from __future__ import annotations

import codecs
import io
import os
import sys
import unicodedata

__all__ = ["fall_back_to_ascii", "open_closed"]

_ASCII = {
    "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "eps", "η": "eta", "Δ": "Delta", "Σ": "Sum",
    "√": "sqrt ", "∞": "inf", "∑": "sum", "−": "-", "–": "-", "—": "-", "×": "x", "·": "*", "±": "+-", "≤": "<=",
    "≥": ">=", "≈": "~", "→": "->", "…": "...", "’": "'", "“": '"', "”": '"', "█": "#",
}  # fmt: skip


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_ascii, error.object[error.start : error.end])), error.end


def _ascii(character: str) -> str:
    plain = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()  # β₂ is beta2
    return _ASCII.get(character) or plain or "?"


def fall_back_to_ascii() -> None:
    """Never fail to print: characters that the encoding lacks are written in ASCII.

    >>> codecs.register_error("dynabound-ascii", _replace)
    >>> "α* = 0.1, β₂ ≥ 0 …".encode("ascii", "dynabound-ascii").decode()
    'alpha* = 0.1, beta2 >= 0 ...'
    """
    codecs.register_error("dynabound-ascii", _replace)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="dynabound-ascii")


def open_closed() -> None:
    """Open the null device for closed streams, for which Python has None. It also keeps files off their numbers."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
