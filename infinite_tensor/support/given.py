"""What users give, before anything is known of it: code of its class may fail, and tells nothing then."""

from __future__ import annotations

import operator
import sys
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

_MOST = 200
"""Characters that messages show of a value."""

_LARGEST = 2**31
"""Numerators and denominators of ratios stay below it."""


def quoted(value: object) -> str:
    """A value for messages: the beginning of its repr, or its class where it has none; of arrays their shape."""
    try:
        text = _text(value)
    except Exception as error:  # noqa: BLE001  (a class of a user, an int of 5,000 digits, a list in itself)
        return f"<{type(value).__name__}, whose repr is a {type(error).__name__}>"
    return text if len(text) <= _MOST else f"{text[:_MOST]}..."


def _text(value: object) -> str:
    # Commands that need no torch do not import it.
    torch = sys.modules.get("torch")
    arrays = (np.ndarray,) if torch is None else (np.ndarray, torch.Tensor)
    if isinstance(value, arrays) and value.ndim:
        return f"<{type(value).__name__} of shape {tuple(value.shape)}, {value.dtype}>"
    # What these hold may be arrays.
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
    if type(value) is int or type(value) is float:
        return value
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool):
        return value
    # What a class makes of it is left out.
    if isinstance(value, int):
        return int.__pos__(value)
    if isinstance(value, float):
        return float.__pos__(value)
    return complex.__pos__(value) if isinstance(value, complex) else None


def as_index(value: object) -> int | None:
    """The exact integer that `value` stands for (anything with ``__index__`` but no bool), or None."""
    if type(value) is int:
        return value
    try:
        if isinstance(value, bool) or getattr(value, "ndim", 0) != 0 or "bool" in str(getattr(value, "dtype", "")):
            return None
        return operator.index(value)  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001  (it is none, or its class fails)
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
    # Of its class: an object may compute its attributes.
    is_array = all(hasattr(type(value), part) for part in ("shape", "dtype", "__getitem__"))
    return "; give from_array(a), which makes a tensor of an array" if is_array else ""


def members(value: object) -> tuple[Any, ...] | None:
    """The members of a list, a tuple, or another sequence that is no text; None for everything else."""
    # What is given nearly always; to ask whether it is a Sequence takes longer.
    if type(value) is tuple:
        return value
    if not isinstance(value, Sequence) or isinstance(value, str | bytes | bytearray):
        return None
    try:
        return tuple(value)
    except Exception:  # noqa: BLE001  (a class of a user)
        return None
