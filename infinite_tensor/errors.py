"""Every exception and warning of the library.

All exceptions derive from `InfiniteTensorError`; each one is also the builtin that callers
would catch anyway, so ``except ValueError`` and ``except OSError`` work.
"""

from __future__ import annotations

import io


class InfiniteTensorError(Exception):
    """Base of every exception of this library."""


class ValidationError(InfiniteTensorError, ValueError):
    """What was given does not fit what is expected: an argument, a definition, a result of ``f``."""


class RegionError(ValidationError, IndexError):
    """What stands between the brackets selects no region of the tensor."""


class ShapeMismatchError(ValidationError):
    """``f`` returned a wrong number of tensors, or one of a wrong shape."""


class DtypeMismatchError(ValidationError):
    """``f`` returned a tensor of another dtype than the InfiniteTensor was declared with."""


class DeviceMismatchError(ValidationError):
    """``f`` returned a tensor on another device than it was declared with, or a materializer one on meta."""


# MemoryError, whose `__new__` is its own, comes first: that of another base could not make one, as pickles of tblib do.
class OutOfMemoryError(MemoryError, InfiniteTensorError):
    """What a read returns, or what it needs at one time, does not fit into memory."""


class TileAccessError(InfiniteTensorError, LookupError):
    """A region is not stored, and there is no ``f`` at hand to compute it."""


class StoreError(InfiniteTensorError, OSError):
    """A store could not be opened, read or written. What it holds already is unharmed; retry works."""


class BlobModeError(StoreError, io.UnsupportedOperation):
    """The mode in which a `TensorBlob` was opened does not allow this."""


class BlobNotFoundError(StoreError, FileNotFoundError):
    """There is no `TensorBlob` where one was to be opened, or is read."""


class FunctionChangedWarning(UserWarning):
    """``f``, its data or a file differs from what a store was filled with, or cannot be checked; pixels stay."""


class UncoveredPixelsWarning(UserWarning):
    """No window covers some pixels of a tensor's finite dimensions: they are ``blend_init``, or 0."""


class MeaningLostWarning(UserWarning):
    """Something that is known of pixels beside their values is not kept: inputs disagree, or a format has no place."""


class DependantsRemainWarning(UserWarning):
    """A tensor was cleared, and tensors that were computed from it stay as they are."""


class WeakerStorageWarning(UserWarning):
    """Storage has no hard links, no locks, or the like: what is weaker there is told once in a process and place."""


class LinkNotFollowedWarning(UserWarning):
    """A symbolic link leads out of a store: what lies behind it is read, and is neither deleted nor repaired."""


class DamagedDataWarning(UserWarning):
    """A stored object failed its checksum or did not decode; it is recomputed where ``f`` is at hand."""
