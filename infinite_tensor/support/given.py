"""What users give, before anything is known of it: code of its class may fail, and tells nothing then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

_MOST = 200
"""Characters that messages show of a value."""


def quoted(value: object) -> str:
    """A value for messages: the beginning of its repr, or its class where it has none."""
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001  (a class of a user, an int of 5,000 digits, a list in itself)
        return f"<{type(value).__name__}, whose repr is a {type(error).__name__}>"
    return text if len(text) <= _MOST else f"{text[:_MOST]}..."


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
