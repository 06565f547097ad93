"""A property that is computed once for each object."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

T = TypeVar("T")


class cached_property(Generic[T]):  # noqa: N801  (named as the one of functools)
    """`functools.cached_property` without its lock.

    Before Python 3.12 that one computes under a lock which all objects of the class share: a fork in the middle
    leaves it taken in the child. Without it, two threads may both compute a value that is the same for both.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self.compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object | None, owner: type) -> Self | T:
        if instance is None:
            return self
        # What stands in the object's own dictionary is found before this is asked again.
        value = instance.__dict__[self.name] = self.compute(instance)
        return value
