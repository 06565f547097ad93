"""`WeightedMean`: weights of overlapping windows, and computation of the mean.

Weighted windows are added, and the result is divided by the sum of their weights. This divisor follows from geometry,
so only the weighted sum is stored. The divisor is computed for small blocks of whole strides. Nearly all blocks have
the same position relative to the windows, so they share one divisor.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from infinite_tensor.errors import ValidationError
from infinite_tensor.geometry.points import Index, is_empty
from infinite_tensor.geometry.window import TensorWindow, WindowGrid, followed, whole_strides
from infinite_tensor.support.allocation import Array, as_array, as_tensor
from infinite_tensor.support.forks import cached_property
from infinite_tensor.support.given import members, number, quoted, word
from infinite_tensor.values.arrays import check_unmasked

KINDS = ("mean", "linear", "hann", "gaussian")
"""Kinds of weights."""
_LEAST_GAUSSIAN = 1e-3
_SIGMA_SCALE = 0.125
_SIGMA_SCALES = 1e-6, 1e6
"""Limits of `sigma_scale`. Within the limits, no power overflows."""
_SERIAL = 2**14
"""Up to this number of elements, torch uses no threads."""
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class WeightedMean:
    """Blend by the weighted mean of all windows over a pixel.

    The weight of a window at a pixel depends only on the position of the pixel in the window.

    If the windows over a pixel have values v and weights w there, the pixel is ``sum(w * v) / sum(w)``. A pixel that no
    window covers is 0. The sums are float32 for float16, bfloat16 and float32, and float64 for float64. Real and
    imaginary parts are summed separately. Tensors of integers or bools cannot use this blend.

    Parameters
    ----------
    weights : str, torch.Tensor or array
        ``"mean"``: all weights are equal. ``"linear"``: they rise from each side to the middle. ``"hann"``: a squared
        sine. ``"gaussian"``: a bell curve, with the weights of MONAI's ``sliding_window_inference``. Each kind is the
        product of one profile per sliding dimension. A dimension slides if it follows a window coordinate, with a
        stride smaller than the window. Along other dimensions the weight is 1. Instead of a kind, give finite and
        positive weights of any shape that broadcasts to the size of the window.
    sigma_scale : float or sequence of float
        The standard deviation of ``"gaussian"``, as a fraction of the window size: one number, or one per dimension.

    Raises
    ------
    ValidationError
        If `weights` is neither one of these kinds nor valid weights, or if `sigma_scale` is not between 1e-6 and 1e6.

    Notes
    -----
    ``"gaussian"`` is computed by `torch.exp`, and has the same bits as MONAI's weights. The last bit of `torch.exp`
    depends on the processor, so pixels may differ in their last bits between machines. All other weights are the same
    everywhere.

    Examples
    --------
    >>> WeightedMean("gaussian", sigma_scale=0.25)
    WeightedMean('gaussian', sigma_scale=0.25)
    """

    def __init__(self, weights: Any, sigma_scale: float | Sequence[float] = _SIGMA_SCALE) -> None:
        kind, scales = word(weights), members(sigma_scale)
        if kind is not None and kind not in KINDS:
            raise ValidationError(
                f"weights must be one of {', '.join(map(repr, KINDS))}, or a tensor of weights, got {quoted(kind)}"
            )
        given = weights if isinstance(weights, Unknown) or kind is not None else _checked_weights(weights)
        self._weights: str | torch.Tensor | Unknown = given if kind is None else kind
        self._sigma_scale = tuple(map(_checked_number, scales)) if scales else _checked_number(sigma_scale)
        if kind != "gaussian" and self._sigma_scale != _SIGMA_SCALE:
            raise ValidationError(
                f"sigma_scale is for 'gaussian' weights only, got {quoted(sigma_scale)}; leave it out"
            )

    @property
    def weights(self) -> str | torch.Tensor | Unknown:
        """The kind of weights, or a copy of the given weights.

        This is an `Unknown` if only a digest of the weights is stored.
        """
        return self._weights.clone() if isinstance(self._weights, torch.Tensor) else self._weights

    @property
    def sigma_scale(self) -> float | tuple[float, ...]:
        """The standard deviation of ``"gaussian"``, as a fraction of the window size."""
        return self._sigma_scale

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WeightedMean) and mean_to_json(self) == mean_to_json(other)

    def __hash__(self) -> int:
        return hash(repr(mean_to_json(self)))

    def __repr__(self) -> str:
        given = self._weights
        if not isinstance(given, str):
            what = f"shape {tuple(given.shape)}" if isinstance(given, torch.Tensor) else f"digest {given.name}"
            return f"WeightedMean(<weights of {what}>)"
        scale = f", sigma_scale={self._sigma_scale}" if given == "gaussian" else ""
        return f"WeightedMean({given!r}{scale})"


@dataclass(frozen=True)
class Unknown:
    """Placeholder for a user's function or weights, after opening a stored tensor without them.

    Attributes
    ----------
    name : str
        The name of the function, or the digest of the weights, from the store.
    given : str
        The argument missing in ``store.open``, for the error message: ``"blend=..."``.
    """

    name: str
    given: str

    def __call__(self, *_values: torch.Tensor) -> torch.Tensor:
        """Raise ValidationError, because the function itself is not known."""
        raise ValidationError(
            f"{self.name!r} is needed, but only its name is stored; open the tensor with store.open(..., {self.given})"
        )


def mean_to_json(mean: WeightedMean) -> dict[str, Any]:
    """Return the JSON of a weighted mean for a definition.

    Given weights are recorded by a digest.
    """
    weights, scale = mean.weights, mean.sigma_scale
    if not isinstance(weights, str):
        return {"weights": _digest(weights) if isinstance(weights, torch.Tensor) else weights.name}
    if weights != "gaussian":
        return {"weights": weights}
    if isinstance(scale, tuple):
        return {"weights": weights, "sigma_scale": scale[0] if len(set(scale)) == 1 else list(scale)}
    return {"weights": weights, "sigma_scale": scale}


def mean_from_json(stored: object) -> WeightedMean:
    """Create a weighted mean from the JSON of `mean_to_json`.

    Weights of the user become an `Unknown`. Raise ValidationError if `stored` is anything else.
    """
    if not isinstance(stored, Mapping) or not isinstance(stored.get("weights"), str):
        raise ValidationError(f"blend must be a name, a weighted mean or None, got {quoted(stored)}")
    name, scale = stored["weights"], stored.get("sigma_scale", _SIGMA_SCALE)
    weights = Unknown(name, "blend=WeightedMean(weights)") if _DIGEST.fullmatch(name) else name
    mean = WeightedMean(weights, scale)
    if mean_to_json(mean) != stored:
        raise ValidationError(f"blend must be a weighted mean, got {quoted(stored)}")
    return mean


def lifted(mean: WeightedMean) -> WeightedMean:
    """Return the mean for windows with an additional first dimension, such as channels.

    The additional dimension must not slide, so its entry of `sigma_scale` does not matter.
    """
    scale = mean.sigma_scale
    return WeightedMean("gaussian", (scale[0], *scale)) if isinstance(scale, tuple) else mean


def weights_over(mean: WeightedMean, window: TensorWindow) -> torch.Tensor:
    """Return the weights of a window, on the CPU.

    Dimensions of equal weights may have extent 1.
    """
    kind, scale = mean.weights, mean.sigma_scale
    if isinstance(kind, torch.Tensor):
        return kind.reshape((1,) * (window.ndim - kind.ndim) + kind.shape)
    if isinstance(kind, Unknown):
        return kind()
    scales = scale if isinstance(scale, tuple) else (scale,) * window.ndim
    weights = np.ones((), dtype=np.float32)
    # The order matters, because each product is rounded.
    for k, n, stride, each in zip(followed(window), window.size, window.stride, scales, strict=True):
        slides = k is not None and stride < n
        weights = weights[..., None] * (_profile(kind, n, each) if slides else np.ones(1, dtype=np.float32))
    if kind == "gaussian":
        np.maximum(weights, np.float32(max(float(weights.min()), _LEAST_GAUSSIAN)), out=weights)
    return torch.from_numpy(weights)


def check_mean(blend: object, window: TensorWindow, dtype: torch.dtype, blend_init: object) -> None:
    """Check a weighted mean against the rest of a definition.

    Do nothing for any other blend. Raise ValidationError if the mean does not match. Nothing of the size of a window is
    allocated.
    """
    if not isinstance(blend, WeightedMean):
        return
    weights, scale, size = blend.weights, blend.sigma_scale, window.size
    if not (dtype.is_floating_point or dtype.is_complex):
        raise ValidationError(
            f"blend {blend!r} returns fractions, and {dtype} cannot represent fractions; declare dtype=torch.float32, "
            "and convert results, as in t[...].round().to(dtype)"
        )
    if isinstance(scale, tuple) and len(scale) != len(size):
        raise ValidationError(
            f"sigma_scale must be a number, or a tuple with one number per dimension of the window ({len(size)}), got "
            f"{quoted(scale)}"
        )
    if isinstance(weights, torch.Tensor):
        _check_positive(weights.to(accumulator_of(dtype).to_real()))
        given = tuple(weights.shape)
        paired = zip(reversed(given), reversed(size), strict=False)
        if len(given) > len(size) or not all(n in (1, m) for n, m in paired):
            raise ValidationError(
                f"weights of shape {given} do not broadcast to windows of size {size}; give one weight per pixel of a "
                "window, with extent 1 along dimensions of equal weights"
            )
    if blend_init is not None:
        raise ValidationError(f"blend {blend!r} takes no blend_init, got {quoted(blend_init)}; leave it out")


def accumulator_of(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype for sums of weighted values."""
    return torch.promote_types(dtype, torch.float32)


def _profile(kind: str, n: int, scale: float) -> npt.NDArray[np.float32]:
    """Return the weights along one dimension of `n` pixels."""
    if kind == "linear":
        at = np.arange(n, dtype=np.float64)
        return np.minimum(at + 0.5, n - at - 0.5).astype(np.float32)
    if kind == "hann":
        # One half is computed and mirrored, so the weights are symmetric. Python's sine does not depend on numpy's
        # vector instructions.
        half = [math.sin(math.pi * (k + 0.5) / n) ** 2 for k in range((n + 1) // 2)]
        return np.array(half + half[: n // 2][::-1], dtype=np.float64).astype(np.float32)
    if kind == "gaussian":
        # As MONAI does (monai.data.utils.compute_importance_map).
        places = torch.arange(start=-(n - 1) / 2.0, end=(n - 1) / 2.0 + 1, dtype=torch.float32, device="cpu")
        exponents = places**2 / (-2 * (n * scale) ** 2)
        return torch.cat([torch.exp(part) for part in torch.split(exponents, _SERIAL)]).numpy()
    return np.ones(1, dtype=np.float32)


def _checked_number(scale: Any) -> float:
    least, most = _SIGMA_SCALES
    plain = number(scale)
    if not isinstance(plain, int | float) or isinstance(plain, bool) or not least <= plain <= most:
        raise ValidationError(
            f"sigma_scale must be a number between {least} and {most:.0f}, or a tuple with one such number per "
            f"dimension, got {quoted(scale)}"
        )
    return float(plain)


def _checked_weights(weights: Any) -> torch.Tensor:
    check_unmasked(weights, "weights have")
    try:
        tensor = weights if isinstance(weights, torch.Tensor) else torch.from_numpy(np.array(weights))
        if tensor.is_complex() or tensor.layout is not torch.strided:
            raise TypeError(f"{tensor.dtype} in layout {tensor.layout}")
        single = tensor.dtype.is_floating_point and tensor.dtype.itemsize <= torch.float32.itemsize
        held = tensor.detach().to("cpu", torch.float32 if single else torch.float64, copy=True).contiguous()
    except Exception as error:
        raise ValidationError(
            f"weights must be one of {', '.join(map(repr, KINDS))}, or a tensor or array of real numbers, "
            f"got {quoted(weights)}: {error}"
        ) from error
    if not held.numel():
        raise ValidationError(f"weights must contain at least one number, got shape {tuple(held.shape)}")
    _check_positive(held)
    return held


def _check_positive(weights: torch.Tensor) -> None:
    values = weights.numpy()
    wrong = values[~((values > 0) & np.isfinite(values))]
    if wrong.size:
        raise ValidationError(
            f"weights must be finite and positive in {weights.dtype}, got {float(wrong[0])!r} among them; give a small "
            "positive number, such as 1e-3, for pixels of little importance"
        )


def _digest(weights: torch.Tensor) -> str:
    values = weights.numpy().astype("<f8")
    shape = list(values.shape)
    while shape[:1] == [1]:
        # Weights broadcasting to the same values have the same digest.
        del shape[0]
    digest = hashlib.sha256(repr(tuple(shape)).encode())
    digest.update(values.reshape(-1).data)
    return f"sha256:{digest.hexdigest()}"


AT_ONCE = 2**15 - 1
"""Elements to process at once. So few fit into a fast cache, and torch uses no threads (forks lack threads)."""
_IN_TILE = 2**16
_MOST_IN_TILE = 2**18
_SUMS_BYTES = 2**25


class Averaging:
    """Computes the weighted mean of a tensor.

    Several threads and forked processes may use the same object.

    Parameters
    ----------
    mean : WeightedMean
        The weights.
    grid : WindowGrid
        The windows of the tensor.
    accumulator : torch.dtype
        The dtype in which weighted values are summed.
    fold_row : callable
        ``fold_row(target, start, row, index)`` sums windows in their order; see `Blender.fold_row`.
    """

    def __init__(
        self,
        mean: WeightedMean,
        grid: WindowGrid,
        accumulator: torch.dtype,
        fold_row: Callable[[Array, Sequence[int], Array, Index], None],
    ) -> None:
        self._mean = mean
        self._grid = grid
        self._dtype = accumulator.to_real()
        self._fold_row = fold_row
        self._on: dict[torch.device, Array] = {}
        # By the place of a block relative to the windows.
        self._sums: dict[tuple[torch.device, Index, Index], Array] = {}

    def put(self, target: Array, incoming: Array, within: Sequence[slice], *, first: bool) -> None:
        """Add ``weights * incoming`` to `target`.

        If `first`, the old values of `target` are overwritten, because no earlier window covers these pixels.
        `incoming` is the part of a window at the slices `within`, or a stack of such parts.
        """
        weights = self._weights_on(as_tensor(target).device)[tuple(within)]
        if target.ndim > weights.ndim:
            weights = weights[None]
        for part in parts_of((target, incoming, weights)):
            into, values, factor = _tensors(part)
            if first:
                torch.mul(values, factor, out=into)
            else:
                # Do not fuse both operations, because the product must be rounded before the addition.
                into.add_(values * factor)

    def divide(self, summed: Array, start: Sequence[int], target: Array) -> None:
        """Divide `summed` by the sum of the weights, into `target`.

        Both blocks begin at pixel `start`.
        """
        device = as_tensor(summed).device
        for tile, to, of in self._tiles(start, summed.shape):
            for part in parts_of((target[to], summed[to], self._sum(tile, device)[of])):
                quotient, dividend, divisor = _tensors(part)
                if quotient.dtype == dividend.dtype:
                    torch.div(dividend, divisor, out=quotient)
                else:
                    quotient.copy_(dividend / divisor)

    def _weights_on(self, device: torch.device) -> Array:
        if device not in self._on:
            weights = weights_over(self._mean, self._grid.window).to(device, self._dtype)
            self._on[device] = as_array(weights.expand(self._grid.window.size))
        return self._on[device]

    @cached_property
    def _uniform(self) -> list[bool]:
        """For each dimension, whether the sum of the weights is constant along the dimension."""
        grid, weights = self._grid, weights_over(self._mean, self._grid.window)
        at = grid.window.start(tuple(grid.first))
        return [
            (k is None or grid.first[k] == grid.last[k])
            and extent is not None
            and weights.shape[d] == 1
            and at[d] <= 0
            and extent <= at[d] + grid.window.size[d]
            for d, (k, extent) in enumerate(zip(followed(grid.window), grid.shape, strict=True))
        ]

    @cached_property
    def _tile(self) -> Index:
        """The size of blocks with cached sums of weights."""
        grid, window = self._grid, self._grid.window
        tile = [window.stride[d] if d in grid.moving else window.size[d] for d in range(window.ndim)]
        tile = [1 if uniform else n for uniform, n in zip(self._uniform, tile, strict=True)]
        return tuple(whole_strides(grid, tile, _IN_TILE, _MOST_IN_TILE))

    def _tiles(
        self, start: Sequence[int], shape: Sequence[int]
    ) -> Iterator[tuple[Index, tuple[slice, ...], tuple[slice, ...]]]:
        """Yield each tile overlapping a block.

        A tile comes with the slices of the overlap, first in the block and then in the tile.
        """
        cuts: list[list[tuple[int, slice, slice]]] = []
        for a, n, size, uniform in zip(start, shape, self._tile, self._uniform, strict=True):
            if uniform:
                cuts.append([(0, slice(None), slice(None))])
                continue
            along = []
            for i in range(a // size, -(-(a + n) // size)):
                low, high = max(a, i * size), min(a + n, (i + 1) * size)
                along.append((i, slice(low - a, high - a), slice(low - i * size, high - i * size)))
            cuts.append(along)
        for cut in itertools.product(*cuts):
            tile, to, of = zip(*cut, strict=True)
            yield tile, to, of

    def _sum(self, tile: Index, device: torch.device) -> Array:
        """Return the sum of the weights for each pixel of a tile.

        The sum is 1 for pixels without a window.
        """
        start = tuple(map(operator.mul, tile, self._tile))
        low, high = self._grid.box(start, list(map(operator.add, start, self._tile)))
        first = self._grid.window.start(tuple(low))
        key = device, tuple(map(operator.sub, first, start)), tuple(map(operator.sub, high, low))
        if is_empty(low, high):
            key = device, (), ()
        found = self._sums.get(key)
        if found is None:
            found = as_array(self._summed(start, low, high).to(device))
            if (len(self._sums) + 1) * found.nbytes > _SUMS_BYTES:
                self._sums = {}
            self._sums[key] = found
        return found

    def _summed(self, start: Index, low: Sequence[int], high: Sequence[int]) -> torch.Tensor:
        summed = torch.zeros(self._tile, dtype=self._dtype, device="cpu")
        block = as_array(summed)
        if not is_empty(low, high):
            weights = as_tensor(self._weights_on(torch.device("cpu")))
            row = as_array(weights.expand((high[-1] - low[-1], *weights.shape)))
            for lead in itertools.product(*map(range, low[:-1], high[:-1])):
                self._fold_row(block, start, row, (*lead, low[-1]))
        block[block == 0] = 1
        return summed


_Blocks: TypeAlias = tuple[Array, Array, Array]


def parts_of(blocks: _Blocks) -> list[_Blocks]:
    """Cut a target, its values and a factor into parts of at most `AT_ONCE` elements.

    `blocks` is a tuple of these three. The values must have the shape of the target, and the factor must broadcast to
    this shape. Blocks on a GPU are not cut.
    """
    target, values, factor = blocks
    count = math.prod(target.shape)
    if count <= AT_ONCE or as_tensor(target).device.type != "cpu":
        return [blocks]
    rows, alike = len(target), len(factor) == 1
    together = AT_ONCE * rows // count
    if rows == 1 or not together:
        smaller = [(target[i], values[i], factor[0 if alike else i]) for i in range(rows)]
        return [part for each in smaller for part in parts_of(each)]
    step = -(-rows // -(-rows // together))
    cuts = [slice(begin, begin + step) for begin in range(0, rows, step)]
    return [(target[cut], values[cut], factor if alike else factor[cut]) for cut in cuts]


def _tensors(blocks: _Blocks) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return blocks as tensors, with complex values as pairs of real numbers.

    In a complex product, an infinite real part would turn the imaginary part into NaN, and vice versa.
    """
    target, values, factor = as_tensor(blocks[0]), as_tensor(blocks[1]), as_tensor(blocks[2])
    if values.is_complex():
        return torch.view_as_real(target), torch.view_as_real(values), factor.unsqueeze(-1)
    return target, values, factor
