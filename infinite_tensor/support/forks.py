"""Keeping what a process holds usable in a child that is forked from it.

A fork copies locks that other threads hold, and none of the threads that would release them.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Renewable(Protocol):
    """Something that a forked child cannot use as it is."""

    def _renew_after_fork(self) -> None: ...


_known: weakref.WeakSet[Renewable] = weakref.WeakSet()


def renew_in_children(holder: Renewable) -> None:
    """Call ``holder._renew_after_fork()`` in every child that is forked while `holder` is alive.

    It runs before anything else does in the child, so it must make new locks and do no input or output.
    """
    _known.add(holder)


def _renew_all() -> None:
    for holder in list(_known):
        holder._renew_after_fork()  # noqa: SLF001  (of the protocol above)


# Windows has no fork.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
