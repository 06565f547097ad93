"""What an ``f`` reads from elsewhere, as from a file: nothing of it is compared when a tensor is built again."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Generic, TypeVar

T = TypeVar("T")


class Elsewhere(Generic[T]):
    """An attribute that is kept where a look at a function does not reach."""

    def __init__(self) -> None:
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = f"_{name}_elsewhere"

    def __get__(self, instance: object, owner: type) -> T:
        held: nullcontext[T] = vars(instance)[self._name]
        return held.enter_result

    def __set__(self, instance: object, value: T) -> None:
        # Objects of the standard library, but for containers, count for nothing.
        vars(instance)[self._name] = nullcontext(value)
