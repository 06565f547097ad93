"""Values from users, of any type, and the checks of arguments that several public functions share.

The error of each check says what was given and what was expected.
"""

from __future__ import annotations

import operator
import re
import sys
from collections.abc import Sequence
from fractions import Fraction
from typing import Any
from uuid import UUID, uuid4

import numpy as np
import torch

from infinite_tensor.errors import ValidationError

_MOST = 200
"""The most characters of a value in a message."""

_LARGEST = 2**31
"""The limit below which numerators and denominators of ratios stay."""


def quoted(value: object) -> str:
    """Return a value for messages: the beginning of its repr. Arrays, also in a dict or list, are shown by shape."""
    try:
        text = _text(value)
    except (ValueError, RecursionError):
        # For example an int of 5,000 digits, or a list that contains itself.
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
    # The repr of a store would look up its tensors.
    return str(value) if getattr(type(value), "_named_by_str", False) else repr(value)


def word(value: object) -> str | None:
    """Return a str, or a member of a str enum, as a plain str; None for everything else."""
    return str.__str__(value) if isinstance(value, str) else None


def number(value: Any) -> complex | None:
    """Return a number or a numpy scalar as a Python number, and a bool as it is; None for everything else."""
    plain = value.item() if isinstance(value, np.generic) else value
    return plain if isinstance(plain, int | float | complex) else None


def as_index(value: object) -> int | None:
    """Return `value` as an exact int if it has ``__index__`` and is not a bool, else None."""
    if type(value) is int:
        return value
    if isinstance(value, bool) or getattr(value, "ndim", 0) != 0 or "bool" in str(getattr(value, "dtype", "")):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except (TypeError, RuntimeError):
        # Raised by torch for a float, and for a tensor without values.
        return None


def as_ratio(value: object) -> Fraction | None:
    """Return a number as a ratio of small positive ints; None if it is not one."""
    whole, plain = as_index(value), number(value)
    if whole is not None:
        exact = Fraction(whole)
    elif isinstance(value, Fraction):
        exact = value
    elif isinstance(plain, float) and 0 < plain < _LARGEST:
        # The float 1/3 is not exactly a third, but the user means a third.
        exact = Fraction(plain).limit_denominator(2**16)
        if float(exact) != plain:
            return None
    else:
        return None
    return exact if exact > 0 and max(exact.numerator, exact.denominator) < _LARGEST else None


def array_advice(value: object) -> str:
    """Return advice for a message if an array is given in place of an InfiniteTensor; empty for other values."""
    is_array = all(hasattr(type(value), part) for part in ("shape", "dtype", "__getitem__"))
    return "; give from_array(a), which makes a tensor of an array" if is_array else ""


def members(value: object) -> tuple[Any, ...] | None:
    """Return the members of a list, a numpy array of one dimension, or another sequence that is not text, else None."""
    # The most frequent case; isinstance(value, Sequence) takes longer.
    if type(value) is tuple:
        return value
    if isinstance(value, np.ndarray) and value.ndim == 1:
        return tuple(value.tolist())
    return None if isinstance(value, str | bytes | bytearray) or not isinstance(value, Sequence) else tuple(value)


# Arguments.


def checked_id(given: object, name: str = "tensor_id") -> str:
    """Return an id that can be stored: a str as it is, a UUID as a str. Messages call the argument `name`."""
    if isinstance(given, UUID):
        return str(given)
    text = word(given)
    if not text:
        raise ValidationError(f"{name} must be a non-empty str, got {quoted(given)}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValidationError(f"{name} {quoted(given)} is not valid Unicode: {error}") from error
    return text


def unique_id(beginning: str) -> str:
    """Return an id for a tensor to which the user gave none."""
    return "-".join(filter(None, (beginning, str(uuid4()))))


def checked_device(device: object) -> torch.device:
    """Return `device` with the index that tensors on it have: ``cuda`` becomes ``cuda:0``."""
    if not isinstance(device, torch.device | str | int) or isinstance(device, bool):
        raise ValidationError(f"device must be a torch.device or a str, got {quoted(device)}")
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:
        raise ValidationError(
            f'device {quoted(device)} cannot be used: {error}; give device="cpu", or install a torch that supports it'
        ) from error


def checked_flag(name: str, given: object) -> bool:
    """Raise unless `given` is a bool: a str such as "no" would count as true. Messages call the argument `name`."""
    if not isinstance(given, bool):
        raise ValidationError(f"{name} must be a bool, got {quoted(given)}")
    return given


def checked_age(given: object) -> float:
    """Return the argument ``older_than`` as a number of seconds."""
    seconds = number(given)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
        raise ValidationError(f"older_than must be a number of seconds, 0 or more, got {quoted(given)}")
    return float(seconds)


def checked_workers(value: object) -> int | None:
    """Return the argument `workers`, a positive int or None. Raise ValidationError for anything else."""
    return None if value is None else checked_count("workers", value)


def checked_count(name: str, value: object) -> int:
    """Return the argument of this name as an int. Raise ValidationError if it is not a positive int."""
    count = as_index(value)
    if count is None or count < 1:
        raise ValidationError(f"{name} must be a positive int, got {quoted(value)}")
    return count


def check_client(client: object) -> None:
    """Raise ValidationError if `client` is not a client of a Dask cluster."""
    # A user who has a client has already imported `distributed`, which is slow to import.
    distributed = sys.modules.get("distributed")
    if distributed is None or not isinstance(client, distributed.Client):
        raise ValidationError(f"client must be a distributed.Client, got {quoted(client)}")


def checked_progress(progress: object) -> Any:
    """Return the argument `progress` of `fill`. Raise ValidationError if it is invalid."""
    if not isinstance(progress, bool) and word(progress) != "always" and not callable(progress):
        raise ValidationError(f'progress must be a bool, "always" or a callable, got {quoted(progress)}')
    return progress


def checked_shard(shard: object) -> tuple[int, int] | None:
    """Return the argument `shard` as a rank and the number of shards, or None. Raise ValidationError if invalid."""
    if shard is None:
        return None
    match [as_index(number) for number in members(shard) or ()]:
        case [int(rank), int(count)] if 0 <= rank < count:
            return rank, count
    raise ValidationError(f"shard must be (rank, world_size) with 0 <= rank < world_size, got {quoted(shard)}")


_SIZE = re.compile(r"(\d{1,30}(?:\.\d{1,30})?) ?(?:([KMGTPE])(I?))?B", re.ASCII | re.IGNORECASE)


def checked_bytes(name: str, value: object) -> int | None:
    """Return a number of bytes given as an int or a str such as ``"400MB"``, or None. Otherwise raise ValidationError.

    ``"MB"`` is 10^6 bytes and ``"MiB"`` is 2^20 bytes. Case does not matter, and a fraction of a byte is dropped.
    """
    size = as_index(value)
    if isinstance(value, str) and (found := _SIZE.fullmatch(value.strip())):
        number, prefix, binary = found.groups()
        power = 0 if prefix is None else 1 + "KMGTPE".index(prefix.upper())
        size = int(Fraction(number) * (1024 if binary else 1000) ** power)
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
        """The number of bytes that would be enough."""
        return int(self.args[1])

    def __str__(self) -> str:
        return str(self.args[0])


def whole_mebibytes(nbytes: int) -> str:
    """Return a number of bytes, rounded up to MiB, as text that users can give as a limit."""
    return f"{-(-nbytes // 2**20)} MiB"
