"""Checks of the arguments of an `InfiniteTensor`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.masked import is_masked_tensor

from infinite_tensor.errors import RegionError, ValidationError
from infinite_tensor.geometry.padding import PADDINGS
from infinite_tensor.geometry.periodic import Periodic, divisors_near, is_endless
from infinite_tensor.geometry.points import LARGEST, UNBOUNDED
from infinite_tensor.geometry.window import MOST_OVERLAP, Shape, TensorWindow, WindowGrid, followed
from infinite_tensor.support.given import as_index, members, number, quoted, word
from infinite_tensor.values.blend import check_blend
from infinite_tensor.values.definition import ArgDefinition, Padding, label_of, pixel_value
from infinite_tensor.values.dtypes import checked_dtype
from infinite_tensor.values.reduction import check_reduction
from infinite_tensor.values.spec import TensorSpec
from infinite_tensor.values.weights import check_mean


def check_callable(f: object) -> None:
    """Check that `f` is callable."""
    if not callable(f):
        raise ValidationError(
            f"f must be callable, got {quoted(f)}; give a function f(ctx, *regions) returning a tensor, or open "
            "a stored tensor without f by store.open(tensor_id)"
        )


def checked_shape(shape: object) -> Shape:
    """Check a shape, and return a tuple of positive ints, None and `Periodic`."""
    given = members(shape)
    if not given:
        raise ValidationError(
            f"shape must be a tuple of positive ints, None and Periodic, with at least one entry, got {quoted(shape)}; "
            "give (512, 512), for example, or (None, None) for an endless tensor"
        )
    extents = [extent if extent is None or isinstance(extent, Periodic) else as_index(extent) for extent in given]
    for entry, extent in zip(given, extents, strict=True):
        if entry is not None and (extent is None or not 1 <= extent <= LARGEST):
            raise ValidationError(
                f"shape must contain positive ints up to 2**53, None and Periodic only, got {quoted(shape)}"
            )
    return tuple(extents)


def check_on_device(spec: TensorSpec) -> None:
    """Check a spec as by `check_spec`, and that its blend works on its device."""
    check_spec(spec)
    check_blend(spec.blend, spec.gathered.dtype, spec.device)


def check_spec(spec: TensorSpec) -> None:
    """Check that the parts of a definition match each other, given by a user or stored.

    Raise ValidationError if they do not. A reduction of the user is tried once, on a few pixels.
    """
    definition = spec.definition
    shape, window = definition.shape, definition.output_window
    if not isinstance(window, TensorWindow):
        advice = "" if members(window) is None else f"; give TensorWindow({quoted(window)})"
        raise ValidationError(f"output_window must be a TensorWindow, got {quoted(window)}{advice}")
    if window.ndim != len(shape):
        raise ValidationError(
            f"output_window has {window.ndim} dimensions, but the shape {shape} has {len(shape)}; give a TensorWindow "
            "with one size per dimension"
        )
    check_followed("output_window", window, len(shape))
    _check_around(window, spec)
    overlap = WindowGrid(window, shape, definition.edge).overlap
    if overlap > MOST_OVERLAP:
        raise ValidationError(
            f"output_window {window!r} puts {overlap} windows over one pixel, but at most {MOST_OVERLAP} are allowed; "
            "give it a larger stride"
        )
    for at, arg in enumerate(definition.args):
        check_followed(f"args_windows[{at}]", arg.window, len(shape))
    if spec.reduction is not None:
        check_reduction(spec.reduction, shape, window, spec.dtype, spec.device)
    gathered = spec.gathered
    check_mean(gathered.blend, gathered.definition.output_window, gathered.dtype, gathered.blend_init)


def _check_around(window: TensorWindow, spec: TensorSpec) -> None:
    """Check that the windows of each periodic dimension meet at its seam."""
    follows = followed(window)
    for d, (k, extent) in enumerate(zip(follows, spec.shape, strict=True)):
        if not isinstance(extent, Periodic):
            continue
        size, stride, offset = window.size[d], window.stride[d], window.offset[d]
        beginning = f"output_window {window!r} along the periodic dimension {spec.labels[d]} of {extent} pixels"
        if size > extent:
            raise ValidationError(f"{beginning} must not be longer than once around, got a size of {size}")
        if k is None:
            if offset < 0 or offset + size > extent:
                raise ValidationError(
                    f"{beginning} stays in place, and must lie between 0 and {extent}, got "
                    f"{offset}:{offset + size}; let the dimension follow a window coordinate, with stride {extent}"
                )
        elif follows.count(k) > 1:
            raise ValidationError(
                f"{beginning} must follow a window coordinate of its own, got dimension_map {window.dimension_map}"
            )
        elif extent % stride:
            raise ValidationError(
                f"{beginning} must have a stride that divides {extent}, so that windows meet at the seam, got a stride "
                f"of {stride}; give {divisors_near(extent, stride)}, or an extent such as "
                f"{-(-extent // stride) * stride}"
            )


def check_windows(tensor_id: str, grid: WindowGrid, labels: Sequence[str]) -> None:
    """Check that a tensor has at least one window.

    Messages name dimension `d` by ``labels[d]``.

    Raises
    ------
    ValidationError
        If there is no window. The message names the dimensions in which no window fits.
    """
    if not grid.empty:
        return
    window, shape = grid.window, grid.shape
    reasons = [
        f"dimension {labels[d]} has {extent} pixels, but windows of size {size} begin at {offset}"
        + ("" if k is None else f" plus multiples of {stride}")
        for d, (k, size, stride, offset, extent) in enumerate(grid.dimensions)
        if extent is not None and grid.alone(d).empty
    ]
    clipped = WindowGrid(window, shape, ("clip",) * len(shape))
    advice = "" if clipped.empty else ', or edge="clip" to keep the inner parts of windows'
    raise ValidationError(
        f"tensor {tensor_id!r}: no window of output_window {window!r} fits into shape {shape}: "
        f"{'; '.join(reasons) or 'windows fit into each dimension alone, but none fits into all of them'}. Give "
        f"another output_window, with one stride and one offset per dimension{advice}"
    )


def check_args(tensor_id: str, grid: WindowGrid, args: Sequence[Any], definitions: Sequence[ArgDefinition]) -> None:
    """Check that the windows of a tensor stay within its args, or have a padding.

    `grid` has the output windows of the tensor.
    """
    for at, (arg, definition) in enumerate(zip(args, definitions, strict=True)):
        window = definition.window
        for d, (k, extent) in enumerate(zip(followed(window), arg.shape, strict=True)):
            first, last = (0, 0) if k is None else tuple(side[k] for side in grid.ends)
            if k in grid.around:
                _check_meets(tensor_id, at, arg, definition, d, grid.around[k])
            if definition.padding is not None and definition.padding[d].mode != "error":
                continue
            if extent is None or first <= -UNBOUNDED or last >= UNBOUNDED or first > last:
                continue
            low = first * window.stride[d] + window.offset[d]
            high = last * window.stride[d] + window.offset[d] + window.size[d]
            if low < 0 or high > extent:
                label = label_of(d, arg.dims[d])
                raise outside_arg(f"tensor {tensor_id!r}", at, arg.tensor_id, label, low, high, extent)


def _check_meets(tensor_id: str, at: int, arg: Any, definition: ArgDefinition, d: int, count: int) -> None:
    """Check that arg windows around a periodic dimension read the same pixels after `count` windows, once around."""
    stride, extent = definition.window.stride[d], arg.shape[d]
    if definition.padding is not None and definition.padding[d].mode == "wrap" and count * stride % extent:
        raise ValidationError(
            f"args_windows[{at}] of tensor {tensor_id!r} must go around dimension {label_of(d, arg.dims[d])} of "
            f"{arg.tensor_id!r} a whole number of times: {count} windows of stride {stride} are {count * stride} "
            f"pixels, but once around is {extent}; give another stride or extent"
        )


def checked_paddings(args: Sequence[Any], given: object) -> tuple[tuple[Padding, ...] | None, ...]:
    """Return the padding of each arg.

    The result has one entry per arg: a tuple with a padding per dimension, or None for an arg without padding. `given`
    is the argument `args_padding`: one padding for all args, or a list with one entry per arg.

    Raises
    ------
    ValidationError
        If `given` is invalid.
    """
    entries = (given,) * len(args) if _is_one_padding(given) else members(given)
    if entries is None or len(entries) != len(args):
        raise ValidationError(
            f"args_padding must be {_PADDINGS}, or a list with one entry per arg ({len(args)}), each a padding or a "
            f"tuple with one padding per dimension, got {quoted(given)}"
        )
    return tuple(_arg_padding(f"args_padding[{at}]", *each) for at, each in enumerate(zip(args, entries, strict=True)))


_PADDINGS = ", ".join(f'"{mode}"' for mode in PADDINGS if mode != "constant") + ' or ("constant", value)'


def _is_one_padding(given: object) -> bool:
    return given is None or isinstance(given, str) or constant_of(given) is not None


def constant_of(given: object) -> complex | None:
    """Return the value of a padding ``("constant", value)``.

    Return None for anything else.
    """
    entries = members(given)
    return number(entries[1]) if entries is not None and len(entries) == 2 and word(entries[0]) == "constant" else None


def _arg_padding(name: str, arg: Any, given: object) -> tuple[Padding, ...] | None:
    spread = _is_one_padding(given)
    entries = (given,) * len(arg.shape) if spread else members(given)
    if entries is None or len(entries) != len(arg.shape):
        raise ValidationError(
            f"{name} must be {_PADDINGS}, or a tuple with one of these per dimension ({len(arg.shape)}), got "
            f"{quoted(given)}"
        )
    paddings = []
    for d, (entry, extent) in enumerate(zip(entries, arg.shape, strict=True)):
        padding = _padding(f"{name}[{d}]" if not spread else name, arg.dtype, entry)
        if is_endless(extent):
            beyond = "error" if extent is None else "wrap"
            if not spread and padding.mode not in ("error", beyond):
                raise ValidationError(
                    f"{name}[{d}] must be None, because dimension {label_of(d, arg.dims[d])} of {arg.tensor_id!r} is "
                    f"{'unbounded' if extent is None else 'periodic'}, got {quoted(entry)}"
                )
            padding = Padding(beyond)
        paddings.append(padding)
    return tuple(paddings) if any(padding.mode != "error" for padding in paddings) else None


def _padding(name: str, dtype: torch.dtype, given: object) -> Padding:
    if given is None:
        return Padding("error")
    value = constant_of(given)
    mode = word(given) if value is None else "constant"
    if mode not in PADDINGS:
        raise ValidationError(f"{name} must be {_PADDINGS}, got {quoted(given)}")
    if mode != "constant":
        return Padding(mode)
    return Padding(mode, pixel_value(name, 0 if value is None else value, dtype))


def checked_windows(args: Sequence[Any], windows: Sequence[object]) -> tuple[TensorWindow, ...]:
    """Check arg windows, and return a tuple.

    Raise ValidationError unless there is one TensorWindow per arg, with the dimensions of the arg.
    """
    if len(args) != len(windows):
        raise ValidationError(
            f"args_windows must have one TensorWindow per arg, got {len(windows)} windows for {len(args)} args; give "
            "for example args_windows=[output_window.padded(8)] for a halo of 8 pixels"
        )
    checked = []
    for at, (arg, window) in enumerate(zip(args, windows, strict=True)):
        if not isinstance(window, TensorWindow):
            raise ValidationError(f"args_windows[{at}] must be a TensorWindow, got {quoted(window)}")
        if window.ndim != len(arg.shape):
            raise ValidationError(f"args_windows[{at}] has {window.ndim} dimensions, args[{at}] has shape {arg.shape}")
        checked.append(window)
    return tuple(checked)


def check_followed(name: str, window: TensorWindow, coordinates: int) -> None:
    """Check the window coordinates in the dimension map of a window.

    Raise ValidationError if a dimension follows a coordinate that is not below `coordinates`, the number of window
    coordinates. `name` is the name of the window in messages.
    """
    for d, k in enumerate(followed(window)):
        if k is not None and k >= coordinates:
            raise ValidationError(
                f"{name}: dimension {d} follows window coordinate {k}, but the number of coordinates is only "
                f"{coordinates} (numbered from 0); give a dimension_map"
            )


def outside_arg(names: str, at: int, arg_id: str, label: str, low: int, high: int, extent: int) -> RegionError:
    """Create the error for an arg window beyond the ends of an arg."""
    return RegionError(
        f"args_windows[{at}] of {names} reads pixels [{low}, {high}) in dimension {label} of {arg_id!r}, but only "
        f"pixels [0, {extent}) exist; change the window, or set args_padding (padding in map and predict) to "
        f"{_PADDINGS}"
    )


def move_target(
    device: torch.device, dtype: torch.dtype, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[torch.device, torch.dtype]:
    """Return the target device and dtype of ``.to(*args, **kwargs)``.

    `device` and `dtype` are the device and dtype before the move. torch itself parses the arguments, so all forms of
    ``Tensor.to`` work, and wrong arguments raise the same TypeErrors.
    """
    flags = [arg for arg in args if isinstance(arg, bool)]
    if kwargs.get("copy") or (len(flags) > 1 and flags[1]):
        raise TypeError("to() moves an InfiniteTensor in place: copy=True is not possible")
    if "memory_format" in kwargs:
        raise TypeError("to() of an InfiniteTensor takes no memory_format")
    for arg in (*args[:1], kwargs.get("device")):
        known = arg is None or isinstance(arg, torch.Tensor | torch.device | torch.dtype | str | int)
        if not known or isinstance(arg, bool):
            raise TypeError(f"to() takes a device, a dtype or a tensor, got {type(arg).__name__} {arg!r}")
    moved = torch.empty(0, dtype=dtype, device="cpu").to(*args, **kwargs)
    names_device = kwargs.get("device") is not None or any(
        isinstance(arg, torch.Tensor | torch.device | str | int) and not isinstance(arg, bool)
        for arg in (*args, kwargs.get("tensor"))
    )
    return moved.device if names_device else device, checked_dtype(moved.dtype)


def dense(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """Detach a dense tensor from autograd.

    Raise ValidationError if the tensor is not dense, or has a mask. `name` is the name of the tensor in messages.
    """
    if tensor.is_meta or tensor.is_nested or tensor.is_quantized or tensor.layout is not torch.strided:
        raise ValidationError(
            f"{name} must be a dense tensor with values, got {tensor.dtype} of layout {tensor.layout} on "
            f"{tensor.device}; give {name}.to_dense(), or {name}.dequantize()"
        )
    if is_masked_tensor(tensor):
        raise ValidationError(f"{name} must not have a mask; replace masked elements by {name}.to_tensor(value)")
    return tensor.detach().resolve_conj().resolve_neg().as_subclass(torch.Tensor)


def stand_in(given: Any) -> Any:
    """Return ``given.as_tensor()`` for a `TensorBlob`, or another object with this method.

    A torch tensor, or an object without the method, is returned unchanged.
    """
    # Look up the method on the class, because an object may compute attributes. Some torch tensors, such as MONAI's,
    # also have this method.
    as_tensor = None if isinstance(given, torch.Tensor) else getattr(type(given), "as_tensor", None)
    return given if as_tensor is None else as_tensor(given)


def differ(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two results of the same shape differ by more than rounding."""
    if one.shape != other.shape or torch.equal(one, other):
        return False
    differs = differing(one, other)
    is_label = not (one.is_floating_point() or one.is_complex())
    return bool(differs.float().mean() > _FEW) if is_label else bool(differs.any())


def differing(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the pixels that differ by more than rounding, which changes labels only by chance."""
    if not (one.is_floating_point() or one.is_complex()):
        return one != other
    bound = max(torch.finfo(one.dtype).eps, torch.finfo(torch.float32).eps) ** 0.5
    largest = float(one.abs().nan_to_num(0, 0, 0).max()) if one.numel() else 0.0
    return ~torch.isclose(one, other, bound, bound * largest, equal_nan=True)


_FEW = 1e-3
"""The share of labels that rounding may change."""
