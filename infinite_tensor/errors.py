"""Exceptions and warnings of the library.

All exceptions derive from `InfiniteTensorError` and also from the matching builtin exception. For example, ``except
ValueError`` also catches a `ValidationError`.
"""

from __future__ import annotations

import io


class InfiniteTensorError(Exception):
    """Base class of all exceptions in the library."""

    def __str__(self) -> str:
        """Return the message. Control characters, as of names in foreign files, are escaped for terminals."""
        return "".join(
            each if each.isprintable() or each == "\n" else each.encode("unicode_escape").decode()
            for each in super().__str__()
        )


class ValidationError(InfiniteTensorError, ValueError):
    """An argument, a definition or a result of ``f`` is not valid."""


class RegionError(ValidationError, IndexError):
    """The index in the brackets is not a valid region of the tensor."""


class ShapeMismatchError(ValidationError):
    """``f`` returned a tensor with a wrong shape, or a wrong number of tensors."""


class DtypeMismatchError(ValidationError):
    """``f`` returned a tensor with a wrong dtype."""


class DeviceMismatchError(ValidationError):
    """``f`` returned a tensor on the wrong device, or a materializer returned a tensor on the meta device."""


# MemoryError comes first: tblib unpickles exceptions by `__new__`, and needs the `__new__` of MemoryError.
class OutOfMemoryError(MemoryError, InfiniteTensorError):
    """A read needs more memory than available, for the result or for computing."""


class TileAccessError(InfiniteTensorError, LookupError):
    """A region is not stored, and the tensor has no ``f`` to compute it."""


class StoreError(InfiniteTensorError, OSError):
    """A store could not be opened, read or written.

    Stored data is unharmed, and the call can be retried.
    """


class BlobModeError(StoreError, io.UnsupportedOperation):
    """The mode of an open `TensorBlob` does not allow the operation."""


class BlobNotFoundError(StoreError, FileNotFoundError):
    """No `TensorBlob` exists at the given path."""


class FunctionChangedWarning(UserWarning):
    """The ``f``, data or files of stored pixels may have changed.

    The pixels are kept.
    """


class UncoveredPixelsWarning(UserWarning):
    """Some pixels of a tensor are not covered by any window.

    Uncovered pixels have the value ``blend_init``, by default 0.
    """


class MeaningLostWarning(UserWarning):
    """Metadata of pixels is lost.

    The inputs disagree, a stored tensor has other metadata, or a file format cannot contain the metadata.
    """


class DependantsRemainWarning(UserWarning):
    """Tensors computed from a cleared tensor remain in the store."""


class WeakerStorageWarning(UserWarning):
    """Storage lacks hard links, locks or the like, so some guarantees are weaker.

    Issued once per process and storage location.
    """


class LinkNotFollowedWarning(UserWarning):
    """A symbolic link leads out of a store.

    The target of the link is read, but neither deleted nor repaired.
    """


class DamagedDataWarning(UserWarning):
    """A stored object has a wrong checksum or could not be decoded.

    The object is recomputed if the tensor has ``f``.
    """
