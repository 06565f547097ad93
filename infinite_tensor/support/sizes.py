"""Sizes in bytes, as users write them."""

from __future__ import annotations

import re

from infinite_tensor.errors import ValidationError
from infinite_tensor.support.given import as_index, quoted, word

_PREFIXES = ("K", "M", "G", "T", "P", "E")
_UNITS = (
    {"B": 1}
    | {f"{prefix}B": 1000**power for power, prefix in enumerate(_PREFIXES, 1)}
    | {f"{prefix}IB": 1024**power for power, prefix in enumerate(_PREFIXES, 1)}
)
_SIZE = re.compile(r"(\d{1,30})(?:\.(\d{1,30}))? ?([a-z]+)", re.ASCII | re.IGNORECASE)


def _bytes_in(text: str) -> int | None:
    """The bytes that a text such as ``"400MB"`` stands for, less a fraction of one; None where it is no size.

    ``"MB"`` is 10^6 bytes and ``"MiB"`` 2^20; capitals do not matter.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None or match[3].upper() not in _UNITS:
        return None
    decimals = match[2] or ""
    # Without floats, which would round.
    number: int = int(match[1] + decimals) * _UNITS[match[3].upper()] // 10 ** len(decimals)
    return number


def checked_bytes(name: str, value: object) -> int | None:
    """`value` as a number of bytes: an int, a str such as ``"400MB"``, or None for none; else ValidationError."""
    text = word(value)
    size = as_index(value) if text is None else _bytes_in(text)
    if value is not None and (size is None or size < 1):
        raise ValidationError(
            f"{name} must be a positive number of bytes, such as 400_000_000, '400MB' or '1.5 GiB', or None, "
            f"got {quoted(value)}"
        )
    return size


class MemoryTooSmallError(ValidationError):
    """`max_memory` is not enough."""

    def __init__(self, message: str, least: int) -> None:
        super().__init__(message, least)

    @property
    def least(self) -> int:
        """What is enough, in bytes."""
        return int(self.args[1])

    def __str__(self) -> str:
        return str(self.args[0])


def whole_mebibytes(nbytes: int) -> str:
    """At least so many bytes, as a limit that may be given."""
    return f"{-(-nbytes // 2**20)} MiB"
