"""What users give, before anything is known of it, and the checks of arguments that several doors have.

Each check says what was given and what was expected.
"""

from __future__ import annotations

import operator
import re
import sys
from collections.abc import Sequence
from fractions import Fraction
from typing import Any
from uuid import UUID

import numpy as np
import torch

from infinite_tensor.errors import ValidationError

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


# Arguments.


def checked_id(given: object, name: str = "tensor_id") -> str:
    """An id, if it is a str that can be stored; a UUID stands for its str. `name` is the argument, for messages."""
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


def checked_device(device: object) -> torch.device:
    """`device` as torch places tensors on it: ``cuda`` becomes ``cuda:0``."""
    if not isinstance(device, torch.device | str | int) or isinstance(device, bool):
        raise ValidationError(f"device must be a torch.device or a str, got {quoted(device)}")
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:
        raise ValidationError(f"device {quoted(device)} cannot be used: {error}") from error


def checked_flag(name: str, given: object) -> bool:
    """`given` if it is a bool: a str such as "no" would count as true. `name` is the argument, for messages."""
    if not isinstance(given, bool):
        raise ValidationError(f"{name} must be a bool, got {quoted(given)}")
    return given


def checked_age(given: object) -> float:
    """`given` as a number of seconds, for the argument ``older_than``."""
    seconds = number(given)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
        raise ValidationError(f"older_than must be a number of seconds from 0, got {quoted(given)}")
    return float(seconds)


def check_fill(workers: object, client: object, progress: object, shard: object, pyramid: object) -> None:
    """ValidationError for what no fill takes, before it is known what is to be filled."""
    checked_workers(workers)
    if client is not None:
        check_client(client)
    checked_progress(progress)
    checked_shard(shard)
    if not isinstance(pyramid, bool | str):
        raise ValidationError(
            f"pyramid must be True, False or the method of levels, such as 'mode', got {quoted(pyramid)}; "
            "t.pyramid(levels=3) makes so many"
        )
    if shard is not None and pyramid:
        raise ValidationError(
            "a shard cannot fill levels, which lie over several of them: call it with pyramid=True and without shard "
            "when all shards are done; nothing is computed twice"
        )


def checked_workers(value: object) -> int | None:
    """`value` as a number of threads, None where none is said; ValidationError if it is no positive int."""
    return None if value is None else checked_count("workers", value)


def checked_count(name: str, value: object) -> int:
    """The argument of this name as an int; ValidationError if it is no positive one."""
    count = as_index(value)
    if count is None or count < 1:
        raise ValidationError(f"{name} must be a positive int, got {quoted(value)}")
    return count


def check_client(client: object) -> None:
    """ValidationError for what is no client of a Dask cluster."""
    # Whoever has a client has imported it, which takes long.
    distributed = sys.modules.get("distributed")
    if distributed is None or not isinstance(client, distributed.Client):
        raise ValidationError(f"client must be a distributed.Client, got {quoted(client)}")


def checked_progress(progress: object) -> Any:
    """`progress` as `fill` takes it; ValidationError for anything else."""
    if not isinstance(progress, bool) and word(progress) != "always" and not callable(progress):
        raise ValidationError(f'progress must be a bool, "always" or a callable, got {quoted(progress)}')
    return progress


def checked_shard(shard: object) -> tuple[int, int] | None:
    """`shard` as a rank and how many there are; ValidationError for anything else."""
    if shard is None:
        return None
    match [as_index(number) for number in members(shard) or ()]:
        case [int(rank), int(count)] if 0 <= rank < count:
            return rank, count
    raise ValidationError(f"shard must be (rank, world_size) with 0 <= rank < world_size, got {quoted(shard)}")


_SIZE = re.compile(r"(\d{1,30}(?:\.\d{1,30})?) ?(?:([KMGTPE])(I?))?B", re.ASCII | re.IGNORECASE)


def checked_bytes(name: str, value: object) -> int | None:
    """`value` as a number of bytes: an int, a str such as ``"400MB"``, or None for none; else ValidationError.

    ``"MB"`` is 10^6 bytes and ``"MiB"`` 2^20; capitals do not matter, and a fraction of a byte is left out.
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
        """What is enough, in bytes."""
        return int(self.args[1])

    def __str__(self) -> str:
        return str(self.args[0])


def whole_mebibytes(nbytes: int) -> str:
    """At least so many bytes, as a limit that may be given."""
    return f"{-(-nbytes // 2**20)} MiB"
