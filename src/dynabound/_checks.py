"""Checks of arguments: the error gives name=value, what is allowed and, for names, the nearest known one."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from numbers import Real
from typing import Any


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """The end of an error message: the known name nearest to ``word``, or nothing.

    >>> did_you_mean("adabund", ["adam", "adabound"])
    '; did you mean adabound?'
    >>> did_you_mean("xyz", ["adam", "adabound"])
    ''
    """
    near = difflib.get_close_matches(str(word), list(known), 1)
    return f"; did you mean {near[0]}?" if near else ""


def check_choice(name: str, value: object, known: Collection[str]) -> None:
    """Raise ValueError, with the nearest name, if ``value`` is not one of the ``known`` names.

    >>> check_choice("family", "linaer", ["harmonic", "linear"])
    Traceback (most recent call last):
    ...
    ValueError: family='linaer': must be one of harmonic, linear; did you mean linear?
    """
    if value not in known:
        raise ValueError(f"{name}={value!r}: must be one of {', '.join(known)}{did_you_mean(value, known)}")


def check_number(name: str, value: Any, legal: Callable[[float], bool], allowed: str, shown: Any = None) -> float:
    """``value`` as a float; TypeError if it is not a real number, ValueError if it is not ``legal``.

    The message shows ``value``, or ``shown`` if it is given: for example the pair that contains ``value``.

    >>> check_number("gamma", 0, lambda x: x > 0, "a number > 0")
    Traceback (most recent call last):
    ...
    ValueError: gamma=0: must be a number > 0
    """
    message = f"{name}={value if shown is None else shown!r}: must be {allowed}"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(message)
    if not legal(float(value)):
        raise ValueError(message)
    return float(value)


def check_numbers(
    name: str, values: Any, legal: Callable[[tuple[float, ...]], bool], allowed: str
) -> tuple[float, ...]:
    """``values``, a sequence of real numbers, as a tuple of floats; errors as in :func:`check_number`.

    >>> check_numbers("box", (1, 0), lambda x: len(x) == 2 and x[0] < x[1], "(low, high) with low < high")
    Traceback (most recent call last):
    ...
    ValueError: box=(1, 0): must be (low, high) with low < high
    """
    message = f"{name}={values!r}: must be {allowed}"
    if not isinstance(values, Sequence) or any(isinstance(x, bool) or not isinstance(x, Real) for x in values):
        raise TypeError(message)
    numbers = tuple(map(float, values))
    if not legal(numbers):
        raise ValueError(message)
    return numbers


def check_positive(name: str, value: Any) -> float:
    """``value`` as a float, if it is a finite number > 0."""
    return check_number(name, value, lambda x: 0 < x < math.inf, "a finite number > 0")


def require(legal: bool, name: str, value: object, allowed: str) -> None:
    """Raise a ValueError with name=value and what is ``allowed``, unless ``legal``.

    >>> require(False, "steps", 0, "at least 1")
    Traceback (most recent call last):
    ...
    ValueError: steps=0: must be at least 1
    """
    if not legal:
        raise ValueError(f"{name}={value!r}: must be {allowed}")
