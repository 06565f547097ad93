"""`WeightedMean`: how much each pixel of a window counts where windows overlap."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from infinite_tensor.errors import ValidationError
from infinite_tensor.geometry.window import TensorWindow, followed
from infinite_tensor.support.given import members, number, quoted
from infinite_tensor.values.arrays import check_unmasked

_Profile: TypeAlias = npt.NDArray[np.float32]

_LEAST_GAUSSIAN = 1e-3
_SIGMA_SCALE = 0.125
_SIGMA_SCALES = 1e-6, 1e6
"""Between these, no power of one overflows."""
_SERIAL = 2**14
"""Elements that torch works on without its threads."""
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class WeightedMean:
    """A blend: each pixel is the mean of all windows that cover it, weighted by where it lies in them.

    Where windows of values v have weights w over a pixel, the pixel is ``sum(w * v) / sum(w)``; one that no window
    covers is 0. The sums are float32 for float16, bfloat16 and float32, and float64 for float64; real and imaginary
    parts are summed on their own. A tensor of integers or bools has no mean.

    Parameters
    ----------
    weights : str, torch.Tensor or array
        ``"mean"``: all alike. ``"linear"``: rises from each side to the middle. ``"hann"``: a squared sine.
        ``"gaussian"``: a bell curve, the weights of MONAI's ``sliding_window_inference``. Each is the product of
        one profile per dimension that slides: one that follows a window coordinate with a stride below its size. Along
        others it is 1. Or weights of any shape that broadcasts to the size of the window: finite and positive.
    sigma_scale : float or sequence of float
        Standard deviation of ``"gaussian"``, in sizes of the window: one number, or one per dimension.

    Raises
    ------
    ValidationError
        If `weights` is none of these, or `sigma_scale` is no number between 1e-6 and 1e6.

    Notes
    -----
    ``"gaussian"`` is computed by `torch.exp`, like MONAI's weights, to which it is equal in every bit. Processors
    differ in the last bit of that function, and machines with different ones in the last bits of pixels. The other
    kinds, and weights that are given, are the same everywhere.

    Examples
    --------
    >>> WeightedMean("gaussian", sigma_scale=0.25)
    WeightedMean('gaussian', sigma_scale=0.25)
    """

    def __init__(self, weights: Any, sigma_scale: float | Sequence[float] = _SIGMA_SCALE) -> None:
        self._kind: str | None = None
        self._given: torch.Tensor | None = None
        self._sigma_scale = _checked_scale(sigma_scale)
        if isinstance(weights, str):
            self._kind = _checked_kind(weights)
        else:
            self._given = _checked_weights(weights)
        if self._kind != "gaussian" and self._sigma_scale != _SIGMA_SCALE:
            raise ValidationError(
                f"sigma_scale is for 'gaussian' weights only, got {quoted(sigma_scale)}; leave it out"
            )

    @property
    def weights(self) -> str | torch.Tensor:
        """The kind of weights, or a copy of those that were given."""
        return self._kind if self._given is None else self._given.clone()  # type: ignore[return-value]

    @property
    def sigma_scale(self) -> float | tuple[float, ...]:
        """Standard deviation of ``"gaussian"``, in sizes of the window."""
        return self._sigma_scale

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WeightedMean) and mean_to_json(self) == mean_to_json(other)

    def __hash__(self) -> int:
        return hash(repr(mean_to_json(self)))

    def __repr__(self) -> str:
        if self._given is not None:
            return f"WeightedMean(<weights of shape {tuple(self._given.shape)}>)"
        scale = "" if self._kind != "gaussian" else f", sigma_scale={self._sigma_scale}"
        return f"WeightedMean({self._kind!r}{scale})"


class UnknownWeights(WeightedMean):
    """Stands for a weighted mean of which only a digest of the weights is known."""

    def __init__(self, name: str) -> None:
        super().__init__("mean")
        self.name = name

    @property
    def weights(self) -> str | torch.Tensor:
        """Raise ValidationError: they are not there."""
        raise ValidationError(
            f"this needs the weights of a weighted mean, of which only the digest {self.name!r} is stored; give them "
            "to store.open(..., blend=WeightedMean(weights))"
        )

    def __repr__(self) -> str:
        return f"WeightedMean(<weights of digest {self.name}>)"


def mean_to_json(mean: WeightedMean) -> dict[str, Any]:
    """What a definition says of a mean: its kind, or a digest of the weights that were given."""
    if isinstance(mean, UnknownWeights):
        return {"weights": mean.name}
    weights, scale = mean.weights, mean.sigma_scale
    if isinstance(weights, torch.Tensor):
        return {"weights": _digest(weights)}
    if weights != "gaussian":
        return {"weights": weights}
    if isinstance(scale, tuple):
        return {"weights": weights, "sigma_scale": scale[0] if len(set(scale)) == 1 else list(scale)}
    return {"weights": weights, "sigma_scale": scale}


def mean_from_json(stored: object) -> WeightedMean:
    """The mean that `mean_to_json` described, of which weights that were given are not known.

    ValidationError for what it cannot have described.
    """
    if not isinstance(stored, Mapping) or not isinstance(stored.get("weights"), str):
        raise ValidationError(f"blend must be a name, a weighted mean or None, got {quoted(stored)}")
    name, scale = stored["weights"], stored.get("sigma_scale", _SIGMA_SCALE)
    mean = UnknownWeights(name) if _DIGEST.fullmatch(name) else WeightedMean(name, scale)
    if mean_to_json(mean) != stored:
        raise ValidationError(f"blend must be a weighted mean, got {quoted(stored)}")
    return mean


def lifted(mean: WeightedMean) -> WeightedMean:
    """The same mean of windows with one dimension more, in front, which does not slide."""
    scale = mean.sigma_scale
    return WeightedMean("gaussian", (scale[0], *scale)) if isinstance(scale, tuple) else mean


def is_even(mean: WeightedMean) -> bool:
    """Whether a mean is known to have weights that are all 1."""
    return not isinstance(mean, UnknownWeights) and isinstance(mean.weights, str) and mean.weights == "mean"


def weights_over(mean: WeightedMean, window: TensorWindow) -> torch.Tensor:
    """The weights of a window, on the CPU: one dimension for each of its, of extent 1 where they do not differ."""
    kind, scale = mean.weights, mean.sigma_scale
    if isinstance(kind, torch.Tensor):
        return kind.reshape((1,) * (window.ndim - kind.ndim) + kind.shape)
    scales = scale if isinstance(scale, tuple) else (scale,) * window.ndim
    weights = np.ones((), dtype=np.float32)
    # In this order, as each product is rounded.
    for n, each, slides in zip(window.size, scales, _sliding(window), strict=True):
        profile = _PROFILES[kind](n, each) if slides else np.ones(1, dtype=np.float32)
        weights = weights[..., None] * profile
    if kind == "gaussian":
        np.maximum(weights, np.float32(max(float(weights.min()), _LEAST_GAUSSIAN)), out=weights)
    return torch.from_numpy(weights)


def check_dtype(mean: WeightedMean, dtype: torch.dtype) -> None:
    """ValidationError unless values of this dtype have a mean with these weights."""
    if not (dtype.is_floating_point or dtype.is_complex):
        raise ValidationError(
            f"blend {mean!r} divides, and {dtype} holds no fractions: use torch.float32, and convert what is read "
            "(t[...].round().to(dtype))"
        )
    if not isinstance(mean, UnknownWeights) and isinstance(mean.weights, torch.Tensor):
        _check_positive(mean.weights.to(real_dtype(accumulator_of(dtype))))


def check_mean(blend: object, window: TensorWindow, dtype: torch.dtype, blend_init: object) -> None:
    """ValidationError where `blend` is a weighted mean that does not fit the rest of a definition.

    Nothing of the size of a window is allocated.
    """
    if not isinstance(blend, WeightedMean):
        return
    check_dtype(blend, dtype)
    _check_window(blend, window)
    if blend_init is not None:
        raise ValidationError(
            f"blend {blend!r} takes no blend_init: it begins with the first window, and what no window covers is 0; "
            f"got {quoted(blend_init)}, leave it out"
        )


def _check_window(mean: WeightedMean, window: TensorWindow) -> None:
    scale, size = mean.sigma_scale, window.size
    if isinstance(scale, tuple) and len(scale) != len(size):
        raise ValidationError(
            f"sigma_scale must be a number or one per dimension of the window ({len(size)}), got {quoted(scale)}"
        )
    weights = None if isinstance(mean, UnknownWeights) else mean.weights
    if isinstance(weights, torch.Tensor):
        given = tuple(weights.shape)
        paired = zip(reversed(given), reversed(size), strict=False)
        if len(given) > len(size) or not all(n in (1, m) for n, m in paired):
            raise ValidationError(
                f"weights of shape {given} do not broadcast to windows of size {size}; give one weight per pixel of a "
                "window, with extent 1 along dimensions where they do not differ"
            )


_WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
_REAL = {torch.complex64: torch.float32, torch.complex128: torch.float64}


def accumulator_of(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which weighted values of `dtype` are summed."""
    return _WIDER.get(dtype, dtype)


def real_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the real parts of values of `dtype`."""
    return _REAL.get(dtype, dtype)


def _sliding(window: TensorWindow) -> list[bool]:
    """Which dimensions slide: windows at neighbouring coordinates overlap along them."""
    return [
        k is not None and stride < n for k, stride, n in zip(followed(window), window.stride, window.size, strict=True)
    ]


def _mean(n: int, _scale: float) -> _Profile:  # noqa: ARG001  (all alike, whatever the size)
    return np.ones(1, dtype=np.float32)


def _linear(n: int, _scale: float) -> _Profile:
    at = np.arange(n, dtype=np.float64)
    return np.minimum(at + 0.5, n - at - 0.5).astype(np.float32)


def _hann(n: int, _scale: float) -> _Profile:
    # Each side by itself, and by the sine of Python, so that the weights are symmetric and do not depend on numpy's
    # vector instructions.
    half = [math.sin(math.pi * (k + 0.5) / n) ** 2 for k in range((n + 1) // 2)]
    return np.array(half + half[: n // 2][::-1], dtype=np.float64).astype(np.float32)


def _gaussian(n: int, scale: float) -> _Profile:
    """As MONAI computes it (monai.data.utils.compute_importance_map)."""
    sigma = n * scale
    at = torch.arange(start=-(n - 1) / 2.0, end=(n - 1) / 2.0 + 1, dtype=torch.float32, device="cpu")
    exponents = at**2 / (-2 * sigma**2)
    return torch.cat([torch.exp(part) for part in torch.split(exponents, _SERIAL)]).numpy()


_PROFILES: Mapping[str, Callable[[int, float], _Profile]] = {
    "mean": _mean,
    "linear": _linear,
    "hann": _hann,
    "gaussian": _gaussian,
}
KINDS = tuple(_PROFILES)
"""The kinds of weights that have a name."""


def _checked_kind(given: str) -> str:
    kind = str.__str__(given)
    if kind not in _PROFILES:
        raise ValidationError(
            f"weights must be one of {', '.join(map(repr, KINDS))}, or a tensor of weights, got {quoted(kind)}"
        )
    return kind


def _checked_scale(scale: object) -> float | tuple[float, ...]:
    scales = members(scale)
    return tuple(map(_checked_number, scales)) if scales else _checked_number(scale)


def _checked_number(scale: Any) -> float:
    least, most = _SIGMA_SCALES
    plain = number(scale)
    if not isinstance(plain, int | float) or isinstance(plain, bool) or not least <= plain <= most:
        raise ValidationError(
            f"sigma_scale must be a number between {least} and {most:.0f}, or one per dimension, got {quoted(scale)}"
        )
    return float(plain)


def _checked_weights(weights: Any) -> torch.Tensor:
    """A copy of the weights, in float32 or float64."""
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
        raise ValidationError(f"weights must hold at least one number, got shape {tuple(held.shape)}")
    _check_positive(held)
    return held


def _check_positive(weights: torch.Tensor) -> None:
    values = weights.numpy()
    wrong = values[~((values > 0) & np.isfinite(values))]
    if wrong.size:
        raise ValidationError(
            f"weights must be finite and positive in {weights.dtype}, got {float(wrong[0])!r} among them; give a small "
            "positive number, such as 1e-3, for pixels that hardly count"
        )


def _digest(weights: torch.Tensor) -> str:
    values = weights.numpy().astype("<f8")
    shape = list(values.shape)
    while shape[:1] == [1]:
        # What broadcasts to the same weights is the same.
        del shape[0]
    digest = hashlib.sha256(repr(tuple(shape)).encode())
    digest.update(values.reshape(-1).data)
    return f"sha256:{digest.hexdigest()}"
