"""Every exception and warning of the library.

All exceptions derive from `InfiniteTensorError` and from the matching builtin exception, so ``except ValueError`` and
``except OSError`` catch them too.
"""

from __future__ import annotations

import io


class InfiniteTensorError(Exception):
    """Base of every exception of this library."""


class ValidationError(InfiniteTensorError, ValueError):
    """An argument, a definition or a result of ``f`` is not valid."""


class RegionError(ValidationError, IndexError):
    """The index in the brackets is not a valid region of the tensor."""


class ShapeMismatchError(ValidationError):
    """``f`` returned a wrong number of tensors, or one of a wrong shape."""


class DtypeMismatchError(ValidationError):
    """``f`` returned a tensor whose dtype is not that of the InfiniteTensor."""


class DeviceMismatchError(ValidationError):
    """``f`` returned a tensor on another device than the InfiniteTensor's, or a materializer returned one on meta."""


# MemoryError comes first, because tblib unpickles exceptions by `__new__`, and only that of MemoryError can create one.
class OutOfMemoryError(MemoryError, InfiniteTensorError):
    """The result of a read, or the memory that the read needs at one time, does not fit into memory."""


class TileAccessError(InfiniteTensorError, LookupError):
    """A region is not stored, and the tensor has no ``f`` to compute it."""


class StoreError(InfiniteTensorError, OSError):
    """A store could not be opened, read or written. What is already stored is unharmed, and the call can be retried."""


class BlobModeError(StoreError, io.UnsupportedOperation):
    """The mode in which a `TensorBlob` was opened does not allow the operation."""


class BlobNotFoundError(StoreError, FileNotFoundError):
    """There is no `TensorBlob` at the place that was to be opened or read."""


class FunctionChangedWarning(UserWarning):
    """``f``, its data or a file may differ from what the stored pixels were computed with; the pixels are kept."""


class UncoveredPixelsWarning(UserWarning):
    """No window covers some pixels of a tensor's finite dimensions: they are ``blend_init``, or 0."""


class MeaningLostWarning(UserWarning):
    """Metadata of pixels is lost, because inputs disagree or because a format has no place for it."""


class DependantsRemainWarning(UserWarning):
    """A tensor was cleared, but tensors that were computed from it remain."""


class WeakerStorageWarning(UserWarning):
    """Storage lacks hard links, locks or the like. Says which guarantees are weaker, once per process and place."""


class LinkNotFollowedWarning(UserWarning):
    """A symbolic link leads out of a store: its target is read, but neither deleted nor repaired."""


class DamagedDataWarning(UserWarning):
    """A stored object failed its checksum or could not be decoded; it is recomputed if the tensor has its ``f``."""
