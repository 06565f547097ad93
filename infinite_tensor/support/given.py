"""Conversions and checks of values given by users.

An error message contains the given value and the expected kind of value.
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
"""The maximum number of characters of a value in a message."""

_LARGEST = 2**31
"""The limit of numerators and denominators in ratios."""


def quoted(value: object) -> str:
    """Return the repr of a value for messages.

    A long repr is cut off. Arrays, also in a dict, list or tuple, are shown by shape.
    """
    try:
        text = _text(value)
    except Exception:  # noqa: BLE001  (of any object)
        # For example an int of 5,000 digits, a list inside itself, or a file that has been closed.
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
    """Convert a str or a member of a str enum to a plain str.

    Return None for everything else.
    """
    return str.__str__(value) if isinstance(value, str) else None


def number(value: Any) -> complex | None:
    """Convert a number or a numpy scalar to a Python number.

    A bool stays a bool. Return None for everything else.
    """
    plain = value.item() if isinstance(value, np.generic) else value
    return plain if isinstance(plain, int | float | complex) else None


def as_index(value: object) -> int | None:
    """Convert an integer of any type with ``__index__`` to an int.

    Return None for everything else, including bools.
    """
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
    """Convert a number to a ratio of small positive ints.

    Return None if there is no such ratio.
    """
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
    """Return advice for a message about an array in place of an InfiniteTensor.

    The advice is empty for other values.
    """
    is_array = all(hasattr(type(value), part) for part in ("shape", "dtype", "__getitem__"))
    return "; give from_array(a) in place of the array" if is_array else ""


def members(value: object) -> tuple[Any, ...] | None:
    """Convert a sequence or a numpy array of one dimension to a tuple.

    Return None for text and for everything else.
    """
    # The most frequent case; isinstance(value, Sequence) takes longer.
    if type(value) is tuple:
        return value
    if isinstance(value, np.ndarray) and value.ndim == 1:
        return tuple(value.tolist())
    return None if isinstance(value, str | bytes | bytearray) or not isinstance(value, Sequence) else tuple(value)


# Arguments.


def checked_id(given: object, name: str = "tensor_id") -> str:
    """Check an id, and convert a UUID to a str.

    `name` is the name of the argument in messages.
    """
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
    """Create an id for a tensor without a given id."""
    return "-".join(filter(None, (beginning, str(uuid4()))))


def checked_device(device: object) -> torch.device:
    """Add the index to a device: ``cuda`` becomes ``cuda:0``.

    Raise ValidationError if the device cannot be used.
    """
    if not isinstance(device, torch.device | str | int) or isinstance(device, bool):
        raise ValidationError(f"device must be a torch.device or a str, got {quoted(device)}")
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:
        raise ValidationError(
            f'device {quoted(device)} cannot be used: {error}; give device="cpu", or install torch with support for it'
        ) from error


def checked_flag(name: str, given: object) -> bool:
    """Check that an argument is a bool.

    A str such as "no" would count as true. `name` is the name of the argument in messages.
    """
    if not isinstance(given, bool):
        raise ValidationError(f"{name} must be a bool, got {quoted(given)}")
    return given


def checked_age(given: object) -> float:
    """Check the argument `older_than`, a number of seconds."""
    seconds = number(given)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
        raise ValidationError(f"older_than must be a number of seconds, 0 or more, got {quoted(given)}")
    return float(seconds)


def checked_workers(value: object) -> int | None:
    """Check the argument `workers`, a positive int or None."""
    return None if value is None else checked_count("workers", value)


def checked_count(name: str, value: object) -> int:
    """Convert an argument to an int, and check for a positive value.

    `name` is the name of the argument in messages.
    """
    count = as_index(value)
    if count is None or count < 1:
        raise ValidationError(f"{name} must be a positive int, got {quoted(value)}")
    return count


def check_client(client: object) -> None:
    """Check that `client` is a client of a Dask cluster."""
    # A user with a client has already imported `distributed`. An import here would be slow.
    distributed = sys.modules.get("distributed")
    if distributed is None or not isinstance(client, distributed.Client):
        raise ValidationError(f"client must be a distributed.Client, got {quoted(client)}")


def checked_progress(progress: object) -> Any:
    """Check the argument `progress` of `fill`."""
    if not isinstance(progress, bool) and word(progress) != "always" and not callable(progress):
        raise ValidationError(f'progress must be a bool, "always" or a callable, got {quoted(progress)}')
    return progress


def checked_shard(shard: object) -> tuple[int, int] | None:
    """Check the argument `shard`: None, or a rank and the number of shards."""
    if shard is None:
        return None
    match [as_index(number) for number in members(shard) or ()]:
        case [int(rank), int(count)] if 0 <= rank < count:
            return rank, count
    raise ValidationError(f"shard must be (rank, world_size) with 0 <= rank < world_size, got {quoted(shard)}")


_SIZE = re.compile(r"(\d{1,30}(?:\.\d{1,30})?) ?(?:([KMGTPE])(I?))?B", re.ASCII | re.IGNORECASE)


def checked_bytes(name: str, value: object) -> int | None:
    """Convert an int or a str such as ``"400MB"`` to a number of bytes.

    None stays None. Raise ValidationError for everything else. `name` is the name of the argument in messages.

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
    """`max_memory` is too small."""

    def __init__(self, message: str, least: int) -> None:
        super().__init__(message, least)

    @property
    def least(self) -> int:
        """The number of bytes needed."""
        return int(self.args[1])

    def __str__(self) -> str:
        return str(self.args[0])


def whole_mebibytes(nbytes: int) -> str:
    """Return a number of bytes as text, rounded up to MiB.

    Users can give the text as a limit.
    """
    return f"{-(-nbytes // 2**20)} MiB"
