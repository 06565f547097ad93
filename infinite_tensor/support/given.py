"""What users give, before anything is known of it."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

_MOST = 200
"""Characters that messages show of a value."""

_LARGEST = 2**31
"""Numerators and denominators of ratios stay below it."""


def quoted(value: object) -> str:
    """A value for messages: the beginning of its repr; of arrays their shape, also of those in a dict or a list."""
    try:
        text = _text(value)
    except (ValueError, RecursionError):
        # An int of 5,000 digits, a list in itself.
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _MOST else f"{text[:_MOST]}..."


def _text(value: Any) -> str:
    if not isinstance(value, type) and getattr(value, "ndim", None) and hasattr(value, "dtype"):
        return f"<{type(value).__name__} of shape {tuple(value.shape)}, {value.dtype}>"
    if type(value) is dict:
        return f"{{{', '.join(f'{_text(key)}: {_text(each)}' for key, each in value.items())}}}"
    if type(value) is list:
        return f"[{', '.join(map(_text, value))}]"
    if type(value) is tuple:
        return f"({', '.join(map(_text, value))}{',' * (len(value) == 1)})"
    # The repr of a store takes a look at what it holds.
    return str(value) if getattr(type(value), "_named_by_str", False) else repr(value)


def word(value: object) -> str | None:
    """A str as nothing but a str, also of a member of an enum that is one; None for everything else."""
    return str.__str__(value) if isinstance(value, str) else None


def number(value: Any) -> complex | None:
    """A number as one of Python, also of a scalar of numpy; None for everything else, a bool included if it is one."""
    plain = value.item() if isinstance(value, np.generic) else value
    return plain if isinstance(plain, int | float | complex) else None


def as_index(value: object) -> int | None:
    """The exact integer that `value` stands for (anything with ``__index__`` but no bool), or None."""
    if type(value) is int:
        return value
    if isinstance(value, bool) or getattr(value, "ndim", 0) != 0 or "bool" in str(getattr(value, "dtype", "")):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except (TypeError, RuntimeError):
        # So torch says it of a float, and of a tensor without values.
        return None


def as_ratio(value: object) -> Fraction | None:
    """The ratio of small positive ints that a number stands for; None for everything else."""
    whole, plain = as_index(value), number(value)
    if whole is not None:
        exact = Fraction(whole)
    elif isinstance(value, Fraction):
        exact = value
    elif isinstance(plain, float) and 0 < plain < _LARGEST:
        # 1/3 as a float is not a third, and means one.
        exact = Fraction(plain).limit_denominator(2**16)
        if float(exact) != plain:
            return None
    else:
        return None
    return exact if exact > 0 and max(exact.numerator, exact.denominator) < _LARGEST else None


def array_advice(value: object) -> str:
    """What a message adds about an array that is given in place of an InfiniteTensor; nothing about other things."""
    is_array = all(hasattr(type(value), part) for part in ("shape", "dtype", "__getitem__"))
    return "; give from_array(a), which makes a tensor of an array" if is_array else ""


def members(value: object) -> tuple[Any, ...] | None:
    """The members of a list, a tuple, or another sequence that is no text; None for everything else."""
    # What is given nearly always; to ask whether it is a Sequence takes longer.
    if type(value) is tuple:
        return value
    return None if isinstance(value, str | bytes | bytearray) or not isinstance(value, Sequence) else tuple(value)
