"""A small store to be damaged: two chains of two tensors with overlapping windows.

The second of the other chain is a weighted mean of windows that are clipped, and reads beyond the ends of its arg.
"""

from __future__ import annotations

import itertools
import warnings
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from infinite_tensor import DamagedDataWarning, InfiniteTensor, MemoryTileStore, TensorWindow, TileStore, sl
from tests.support.reference import Index, same_bits

TILE = 6
READS: dict[str, Sequence[Any]] = {
    "base": [sl[0:7, 0:7], sl[5:8, -1:2]],
    "top": [sl[0:6, -6:0], sl[3:5, 5:8]],
    "Strip": [sl[:, -3:20]],
    "veil": [sl[:, -2:5], sl[:, 9:14]],
}
"""What is read of each tensor: over some tiles whole, over others in part."""


def tiles_read(name: str) -> set[Index]:
    """The tiles that `READS` touch; a finite dimension is one tile."""
    found: set[Index] = set()
    for region in READS[name]:
        bounds = [(0, 1) if one.start is None else (one.start, one.stop) for one in region]
        found.update(itertools.product(*(range(a // TILE, (b - 1) // TILE + 1) for a, b in bounds)))
    return found


def _dice(*seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(zlib.crc32(repr(seed).encode()))


def _base(ctx: Index) -> torch.Tensor:
    return torch.rand(4, 4, generator=_dice(0, *ctx))


def _top(ctx: Index, base: torch.Tensor) -> torch.Tensor:
    return (base[:4, :4] - base[2:, 2:] + ctx[1]).to(torch.bfloat16)


def _strip(ctx: Index) -> torch.Tensor:
    return torch.randint(-99, 99, (2, 5), generator=_dice(1, *ctx), dtype=torch.int16)


def _veil(ctx: Index, strip: torch.Tensor) -> torch.Tensor:
    return (strip / 7 + ctx[0]).to(torch.float16)


def build(store: TileStore) -> dict[str, InfiniteTensor]:
    """The tensors, in `store`."""
    window = TensorWindow((4, 4), stride=(3, 3))
    base = InfiniteTensor((None, None), _base, window, tile_store=store, tensor_id="base")
    top = InfiniteTensor(
        (None, None),
        _top,
        window,
        dtype=torch.bfloat16,
        blend_init=float("inf"),
        blend=torch.minimum,
        args=(base,),
        args_windows=(TensorWindow((6, 6), stride=(3, 3), offset=(-1, -1)),),
        tile_store=store,
        tensor_id="top",
    )
    strip = InfiniteTensor(
        (2, None), _strip, TensorWindow((2, 5), stride=(2, 2)), dtype=torch.int16, tile_store=store, tensor_id="Strip"
    )
    veil = InfiniteTensor(
        (9, None),
        _veil,
        TensorWindow((4, 5), stride=3),
        dtype=torch.float16,
        blend="hann",
        edge="clip",
        args=(strip,),
        args_windows=(TensorWindow((4, 5), stride=(1, 3), offset=(-1, 0)),),
        args_padding="wrap",
        tile_store=store,
        tensor_id="veil",
    )
    return {"base": base, "top": top, "Strip": strip, "veil": veil}


def read(tensors: dict[str, InfiniteTensor]) -> dict[str, list[torch.Tensor]]:
    """All of `READS`, of the tensors that there are."""
    return {name: [tensor[region] for region in READS[name]] for name, tensor in tensors.items()}


def fill(store: TileStore) -> None:
    """Have everything computed and stored, some tiles in several parts."""
    tensors = build(store)
    for name, regions in READS.items():
        for region in regions:
            tensors[name][region]
            store.flush()


def truth() -> dict[str, list[torch.Tensor]]:
    """What `read` must return."""
    return read(build(MemoryTileStore()))


def is_right(found: dict[str, list[torch.Tensor]], expected: dict[str, list[torch.Tensor]]) -> bool:
    """Whether all that was found is as expected, to the last bit."""
    return all(same_bits(a, b) for name, blocks in found.items() for a, b in zip(blocks, expected[name], strict=True))


@dataclass(frozen=True)
class Outcome:
    """How a use of a store went: what it returned or raised, and whether it warned of damage."""

    result: Any
    error: Exception | None
    warned: bool

    @classmethod
    def of(cls, use: Any, *accepted: type[Exception]) -> Outcome:
        """Call `use`; errors of the `accepted` kinds are outcomes, others are not caught."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result, error = None, None
            try:
                result = use()
            except accepted as raised:
                error = raised
        strange = [str(w.message) for w in caught if not issubclass(w.category, DamagedDataWarning)]
        assert not strange, strange
        return cls(result, error, bool(caught))
