"""An honest chain in a store, and all that can be done with a store."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

import torch

from infinite_tensor import InfiniteTensor, InfiniteTensorError, MemoryTileStore, TensorWindow, TileStore
from tests.support.dict_store import DictTileStore

T = TypeVar("T")
Open: TypeAlias = Callable[[], TileStore]
Storage: TypeAlias = dict[Any, Any]

TILE = 8
REGION = (slice(0, 9), slice(0, 7))
"""Of both tensors: one complete tile, and partial ones with a prefix and with loose pieces."""

_WINDOW = TensorWindow((4, 4), stride=3)
_MOST_CALLS = 64
_MOST_PIXELS = 10**6


class EnoughError(InfiniteTensorError):
    """A tensor of the attacker's would go on computing, as one of the user's own might."""


def base_window(ctx: tuple[int, ...]) -> torch.Tensor:
    return torch.arange(16.0).reshape(4, 4) / 7 - 10.0 * ctx[0] + ctx[1] / 3


def top_window(_ctx: tuple[int, ...], below: torch.Tensor) -> torch.Tensor:
    return below[1:5, 1:5] * 0.3


def make_base(store: TileStore) -> InfiniteTensor:
    version = {"seed": 1, "scale": [0.5, None], "name": "ü"}
    return InfiniteTensor(
        (None, None), base_window, _WINDOW, tile_store=store, tensor_id="base", blend_init=1.5, version=version
    )


def make_top(store: TileStore) -> InfiniteTensor:
    return InfiniteTensor(
        (None, 10),
        top_window,
        _WINDOW,
        args=(make_base(store),),
        args_windows=(TensorWindow((6, 6), stride=3, offset=-1),),
        tile_store=store,
        tensor_id="top",
        blend=torch.maximum,
        blend_init=-math.inf,
    )


MAKE: dict[str, Callable[[TileStore], InfiniteTensor]] = {"base": make_base, "top": make_top}
EXPECTED = {name: make(MemoryTileStore())[REGION] for name, make in MAKE.items()}


def fill(store: TileStore) -> None:
    """Leave complete and partial tiles of both tensors in a store."""
    with store:
        make_top(store)[REGION]
        store.flush()
        make_base(store)[12:13, 12:13]


def opened(storage: Storage) -> DictTileStore:
    return DictTileStore(storage, tile_size=TILE)


def change(storage: Storage, name: str, **fields: Any) -> None:
    """Replace fields of a definition in the storage of a `DictTileStore`."""
    stored = json.loads(storage[name, "definition"])
    storage[name, "definition"] = json.dumps(stored | fields)


def nested(levels: int) -> Any:
    """A list so many lists deep."""
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


def use(open_store: Open) -> dict[str, torch.Tensor]:
    """Do everything with a store. Our own errors are answers; any other comes through.

    Returns
    -------
    dict of str to torch.Tensor
        `REGION` of the tensors that could be built again under their ids.
    """
    found: dict[str, torch.Tensor] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        store = attempt(open_store)
        if store is None:
            return found
        for name in ("base", "top", "other"):
            for look in (store.tensor_definition, store.tensor_info, store.verify):
                attempt(lambda look=look, name=name: look(name))  # type: ignore[misc]
            attempt(lambda name=name: _read(store.open(name)))  # type: ignore[misc]
        for name, make in MAKE.items():
            with suppress(InfiniteTensorError):
                found[name] = make(store)[REGION]
        # Last, since what it computes is not what the honest tensors hold.
        for name in MAKE:
            attempt(lambda name=name: _read_obliged(store, name))  # type: ignore[misc]
        for end in (store.tensor_ids, store.flush, store.gc, store.close):
            attempt(end)
    return found


def recreate_all(open_store: Open) -> dict[str, torch.Tensor]:
    """Clear both tensors, whatever is stored of them, and compute `REGION` of each."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with open_store() as store:
            for name in MAKE:
                store.clear_tensor(name)
            return {name: make(store)[REGION] for name, make in MAKE.items()}


def attempt(action: Callable[[], T]) -> T | None:
    try:
        return action()
    except InfiniteTensorError:
        return None


def _read(tensor: InfiniteTensor) -> torch.Tensor:
    length = 6 if tensor.ndim < 4 else 1
    region = [slice(0, length) if extent is None else slice(0, min(length, extent)) for extent in tensor.shape]
    pixels: torch.Tensor = tensor[tuple(region)]
    assert pixels.dtype == tensor.dtype
    assert pixels.shape == tuple(part.stop for part in region)
    return pixels


def _read_obliged(store: TileStore, name: str) -> None:
    """Read with an ``f`` that returns whatever the stored definition asks for, within reason."""
    calls = 0

    def f(*_given: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        window = tensor.output_window
        if calls > _MOST_CALLS or math.prod(window.size) > _MOST_PIXELS:
            raise EnoughError
        return torch.ones(window.size, dtype=tensor.dtype)

    tensor = store.open(name, f)
    _read(tensor)
