"""What stores hold, as the pages say: which dtypes, and how a definition is sealed. It needs nothing of the library."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch

DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint16, torch.uint32, torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.complex64, torch.complex128),
)


def dtype_name(dtype: torch.dtype) -> str:
    """``"float32"`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def sealed(definition: Mapping[str, Any]) -> dict[str, Any]:
    """A definition as it is stored, with its digest: see docs/storage-layout.md."""
    fields = {key: value for key, value in definition.items() if key != "digest"}
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return {**fields, "digest": hashlib.sha256(canonical.encode()).hexdigest()}
