"""Checks of the arguments that several doors have: each says what was given and what was expected."""

from __future__ import annotations

import re
import sys
from fractions import Fraction
from typing import Any
from uuid import UUID

import torch

from infinite_tensor.errors import ValidationError
from infinite_tensor.support.given import as_index, members, number, quoted, word


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


def check_fill(workers: object, client: object, progress: object, shard: object) -> None:
    """ValidationError for what no fill takes, before it is known what is to be filled."""
    if workers is not None:
        checked_workers(workers)
    if client is not None:
        check_client(client)
    checked_progress(progress)
    checked_shard(shard)


def checked_workers(value: object) -> int:
    """`value` as a number of threads; ValidationError if it is no positive int."""
    return checked_count("workers", value)


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
