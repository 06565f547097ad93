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
    """``f`` returned a tensor on the wrong device, or a materializer returned a tensor on the meta device."""


# MemoryError comes first, because tblib unpickles exceptions by `__new__`, and only MemoryError's `__new__` works here.
class OutOfMemoryError(MemoryError, InfiniteTensorError):
    """A read needs more memory than there is, for its result or while it computes."""


class TileAccessError(InfiniteTensorError, LookupError):
    """A region is not stored, and the tensor has no ``f`` to compute it."""


class StoreError(InfiniteTensorError, OSError):
    """A store could not be opened, read or written. What is already stored is unharmed, and the call can be retried."""


class BlobModeError(StoreError, io.UnsupportedOperation):
    """The mode in which a `TensorBlob` was opened does not allow the operation."""


class BlobNotFoundError(StoreError, FileNotFoundError):
    """There is no `TensorBlob` at the given path."""


class FunctionChangedWarning(UserWarning):
    """Stored pixels may have been computed with another ``f``, or with other data or files. The pixels are kept."""


class UncoveredPixelsWarning(UserWarning):
    """No window covers some pixels of a tensor. The value of these pixels is ``blend_init``, by default 0."""


class MeaningLostWarning(UserWarning):
    """Metadata of pixels is lost, because inputs disagree or because a format has no place for it."""


class DependantsRemainWarning(UserWarning):
    """A tensor was cleared, but tensors that were computed from it remain."""


class WeakerStorageWarning(UserWarning):
    """Storage lacks hard links, locks or the like, so some guarantees are weaker. Issued once per process and place."""


class LinkNotFollowedWarning(UserWarning):
    """A symbolic link leads out of a store: its target is read, but neither deleted nor repaired."""


class DamagedDataWarning(UserWarning):
    """A stored object failed its checksum or could not be decoded; it is recomputed if the tensor has its ``f``."""
