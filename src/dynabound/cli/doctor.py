"""``dynabound doctor``."""

from __future__ import annotations

from dynabound import doctor as diagnosis
from dynabound.cli.options import Json, examples

__all__ = ["doctor"]


@examples("dynabound doctor", "dynabound doctor --json")
def doctor(as_json: Json = False) -> None:
    """Show versions, the compiled kernel or why there is none, devices and extras."""
    diagnosis.main(as_json)
