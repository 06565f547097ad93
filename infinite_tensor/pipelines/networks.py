"""Calls networks with batches of a fixed size.

Networks stay on the same device and in the same training mode.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from infinite_tensor.errors import ShapeMismatchError, ValidationError
from infinite_tensor.support.forks import cached_property
from infinite_tensor.support.functions import FunctionCaller
from infinite_tensor.support.given import quoted
from infinite_tensor.values.arrays import check_unmasked
from infinite_tensor.values.checks import differ
from infinite_tensor.values.code import Modes
from infinite_tensor.values.fingerprint import STATE, Item, Snapshot
from infinite_tensor.values.functions import first_look

Index: TypeAlias = tuple[int, ...]
Outputs: TypeAlias = dict[str | None, torch.Tensor]
"""Outputs of a network by name. A single tensor has the name None."""


class Company:
    """Finds out whether a network sees the other windows of its batch.

    Batch normalization without running statistics and dynamic quantization do so in eval mode too. Before the first
    batch with different windows, the network is called once more, with one of the windows at all positions.
    """

    def __init__(self) -> None:
        self._is_known = False

    def results(
        self, batch: Sequence[torch.Tensor], call: Callable[[Sequence[int]], Sequence[torch.Tensor]]
    ) -> Sequence[torch.Tensor]:
        """Return what a network returns for a batch.

        Warn if the results for a window depend on the other windows.

        Parameters
        ----------
        batch : sequence of Tensor
            The windows to give to the network.
        call : callable
            ``call(numbers)`` calls the network with the windows of these numbers. It returns a tensor for each output,
            with an entry for each window.
        """
        numbers = range(len(batch))
        if self._is_known or all(torch.equal(batch[0], window) for window in batch[1:]):
            return call(numbers)
        self._is_known = True
        # The darkest window, because dynamic quantization follows the brightest one.
        number = min(numbers, key=lambda n: _height(batch[n]))
        # Copied, because the network may reuse its output buffer.
        alone = [result[number].clone() for result in call([number] * len(batch))]
        found = call(numbers)
        if any(differ(one, other[number]) for one, other in zip(alone, found, strict=False)):
            warnings.warn(
                "the network returns other results for a window if the other windows in its batch change, so stored "
                "pixels depend on which windows are computed together; give batch_size=1. The cause may be batch "
                "normalization with track_running_stats=False, dynamic quantization, or random numbers",
                stacklevel=2,
            )
        return found


def _height(window: torch.Tensor) -> float:
    return float((window if window.is_complex() else window.to(torch.float64)).abs().max())


class CallingNetworks(FunctionCaller):
    """Calls user functions after checking that no network is in training mode."""

    @cached_property
    def snapshot(self) -> Snapshot:
        """The code and values used by the functions, before the first call."""
        return first_look(self, "f")

    @cached_property
    def modes(self) -> Modes:
        """The networks in the functions. ``modes.check()`` raises an error for training mode."""
        return Modes(self.snapshot.networks)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without what was found, because functions may reach different values in another process."""
        return {name: value for name, value in self.__dict__.items() if name not in ("modes", "snapshot")}


class BatchedNetwork(CallingNetworks):
    """The ``f`` of a prediction: calls a network with batches of equal size.

    If there are too few regions for a batch, the last region is repeated. Most networks round differently for another
    batch size. With a fixed size, the bits of a window do not depend on the number of windows in the batch.

    Parameters
    ----------
    net : callable
        ``net(batch) -> output``: `batch` has shape (N, channels, *window), and `output` has shape (N, ...), or is a
        dict or tuple of such outputs.
    batch_size : int
        The number of regions in a batch: N.
    device : torch.device
        Device for batches.
    channel_dim : int or None
        The channel dimension of a region. If None, a channel dimension of size 1 is added.
    names : sequence of str
        Names of the outputs if `net` returns a single tensor: each of them is this tensor.
    """

    def __init__(
        self,
        net: Callable[..., Any],
        batch_size: int,
        device: torch.device,
        channel_dim: int | None,
        names: Sequence[str] = (),
    ) -> None:
        self.__wrapped__ = net
        self.net = net
        self.names = names
        self.batch_size = batch_size
        self._device = device
        self._channel_dim = channel_dim
        self._expected: Mapping[str | None, tuple[tuple[int, ...], torch.dtype]] = {}
        self._kept: dict[Index, Outputs] = {}
        self._company = Company()
        # Lazy modules have no weights before their first call.
        self.is_lazy = any(is_lazy(each) for net in self.snapshot.networks for each in net.parameters())
        self._dtypes = _dtypes_of(net)
        only = isinstance(net, nn.Module) and len(self._dtypes) == 1
        self._dtype = next(iter(self._dtypes)) if only else torch.float32

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_kept": {}}

    def _reaches(self) -> Mapping[str, object]:
        return {"net": self.net, "batch_size": Item("batch_size", str(self.batch_size), STATE)}

    def prepare(self, *, told: bool, stored: bool) -> None:
        """Set `told` and `stored`, before the first call of the network.

        `told` is True if the user has given a `version`, and `stored` if the user has given a `store`. With a store,
        the values in the network are hashed now.
        """
        self.told, self.stored = told, stored
        if stored and not self.is_lazy:
            # Hash values now, because a call of the network may change them.
            self.snapshot.digest()

    def returns(self, expected: Mapping[str | None, tuple[tuple[int, ...], torch.dtype]]) -> None:
        """Set the expected shape and dtype of each output.

        The shape is for a single window. Outputs are converted to the dtype.
        """
        self._expected = expected

    def forget(self) -> None:
        """Drop the outputs kept by `first`."""
        self._kept = {}

    def first(self, ctxs: Sequence[Index], regions: Sequence[torch.Tensor]) -> Outputs:
        """Call the network with the first batch, and keep the outputs.

        The next call for the same windows returns the kept outputs.
        """
        # Copy the outputs, because the network may reuse its output buffer.
        outputs = {name: output.clone() for name, output in self._outputs(regions).items()}
        after = Snapshot(self, "f")
        if self.is_lazy:
            self.snapshot = after
        after.keep_states(self.snapshot, self.snapshot)
        for at, ctx in enumerate(ctxs):
            self._kept[ctx] = {name: output[at : at + 1] for name, output in outputs.items()}
        return outputs

    def __call__(self, ctxs: Sequence[Index], regions: Sequence[torch.Tensor]) -> Any:
        """Return the stacked network outputs for the regions."""
        known = [self._kept.pop(ctx[: regions[0].ndim - (self._channel_dim is not None)], None) for ctx in ctxs]
        missing = [region for region, kept in zip(regions, known, strict=True) if kept is None]
        computed = self._outputs(missing) if missing else {}
        found = {}
        for name in computed or next(kept for kept in known if kept is not None):
            rest = iter(computed[name].unsqueeze(1)) if computed else iter(())
            parts = [next(rest) if kept is None else kept[name] for kept in known]
            whole = computed[name][: len(missing)] if len(missing) == len(known) else torch.cat(parts)
            shape, dtype = self._expected[name]
            found[name] = whole.reshape(len(whole), *shape).to(dtype)
        return found.get(None, found)

    def _outputs(self, regions: Sequence[torch.Tensor]) -> Outputs:
        """Call the network once, and return the outputs on the CPU.

        `regions` has 1 to `batch_size` entries. Each output has `batch_size` entries, since the last region is repeated
        to fill the batch.
        """
        repeated = [*regions, *[regions[-1]] * (self.batch_size - len(regions))]
        names: list[str | None] = []

        def call(numbers: Sequence[int]) -> Sequence[torch.Tensor]:
            outputs = self._of_batch([repeated[number] for number in numbers])
            names[:] = outputs
            return [*outputs.values()]

        results = self._company.results(repeated, call)
        return dict(zip(names, results, strict=True))

    def _of_batch(self, regions: Sequence[torch.Tensor]) -> Outputs:
        batch = torch.stack(list(regions))
        batch = batch.unsqueeze(1) if self._channel_dim is None else batch.movedim(1 + self._channel_dim, 1)
        # Networks round differently where channels are last in memory.
        batch = batch.contiguous()
        self.modes.check()
        named = _named(self._called(batch))
        unfit = [name for name, output in named.items() if name is not None and not self._fits(output)]
        advice = f"leave out {unfit}, by a function around net" if 0 < len(unfit) < len(named) else ""
        outputs = {name: self._checked(name, output, advice) for name, output in named.items()}
        outputs = {name: _on_cpu(output) for name, output in outputs.items()}
        if self.names and None in outputs:
            outputs = dict.fromkeys(self.names, outputs[None])
        self._check_as_before(outputs)
        return outputs

    def _called(self, batch: torch.Tensor) -> object:
        batch = batch.to(self._device, non_blocking=True)
        if not (batch.is_floating_point() or batch.is_complex()):
            batch = batch.to(torch.float32)
        if self._dtypes and batch.is_floating_point() and batch.dtype not in self._dtypes:
            batch = batch.to(self._dtype)
        return self.net(batch)

    def _check_as_before(self, outputs: Outputs) -> None:
        before = {name: shape for name, (shape, _) in self._expected.items()}
        # An output with one result per window lacks the window's dimensions. Compare as with one pixel per dimension.
        lacking = {name: (1,) * (len(before.get(name, ())) + 1 - output.ndim) for name, output in outputs.items()}
        now = {name: (*output.shape[1:], *lacking[name]) for name, output in outputs.items()}
        if before and now != before:
            raise ShapeMismatchError(
                f"net must return the same outputs for all windows, got {_told(now)} for a window, but "
                f"{_told(before)} for earlier windows"
            )

    def _fits(self, output: object) -> bool:
        return isinstance(output, np.ndarray | torch.Tensor) and output.shape[:1] == (self.batch_size,)

    def _checked(self, name: str | None, output: object, advice: str) -> torch.Tensor:
        named = "" if name is None else f" for {name!r}"
        if isinstance(output, np.ndarray):
            output = _tensor_of(output, named)
        if not isinstance(output, torch.Tensor):
            raise ValidationError(
                f"net must return a tensor, or a dict or tuple of tensors, got {quoted(output)}{named}; "
                + (
                    "end it with `return result`"
                    if output is None
                    else advice or "wrap it, as in lambda batch: net(batch).logits"
                )
            )
        if output.ndim < 1 or len(output) != self.batch_size:
            raise ShapeMismatchError(
                f"net must return one result for each window, along the first dimension, got shape "
                f"{tuple(output.shape)}{named} for a batch of {self.batch_size}" + (advice and f"; {advice}")
            )
        return output


def _tensor_of(array: np.ndarray[Any, Any], named: str) -> torch.Tensor:
    check_unmasked(array, f"net returned{named}")
    try:
        # torch accepts only the native byte order and no negative strides, and warns about read-only arrays.
        return torch.from_numpy(np.require(array, array.dtype.newbyteorder("="), ["C", "W"]))
    except TypeError as error:
        raise ValidationError(
            f"net returned a numpy array of {array.dtype}{named}, a dtype unknown to torch; convert the array, as in "
            "lambda batch: net(batch).astype('float32')"
        ) from error


def _on_cpu(output: torch.Tensor) -> torch.Tensor:
    """Return the output on the CPU.

    Pinned memory makes copies from a GPU faster.
    """
    if not output.is_cuda:
        return output.cpu()
    copied = output.to("cpu", non_blocking=True)
    torch.cuda.current_stream(output.device).synchronize()
    return copied


def _told(shapes: Mapping[str | None, tuple[int, ...]]) -> str:
    return f"shape {shapes[None]}" if None in shapes else f"outputs of shapes {shapes}"


def device_of(net: object) -> torch.device:
    """Return the device of the first parameter in `net`.

    `net` is a network, or a function that calls networks. Return the CPU if there are no parameters.
    """
    return next(
        (each.device for network in Snapshot(net, "f").networks for each in network.parameters()), torch.device("cpu")
    )


def _dtypes_of(net: object) -> set[torch.dtype]:
    parameters = [each for network in Snapshot(net, "f").networks for each in network.parameters()]
    return {each.dtype for each in parameters if each.is_floating_point()}


def _named(returned: object) -> dict[str | None, object]:
    """Return the network outputs by name.

    None entries are left out, unless all entries are None.
    """
    if isinstance(returned, Mapping):
        named = {str(name): output for name, output in returned.items()}
    elif isinstance(returned, tuple | list):
        names = getattr(returned, "_fields", range(len(returned)))
        named = {str(name): output for name, output in zip(names, returned, strict=True)}
    elif is_dataclass(returned) and not isinstance(returned, type):
        named = {field.name: getattr(returned, field.name) for field in fields(returned)}
    else:
        return {None: returned}
    return {name: output for name, output in named.items() if output is not None} or {None: None}
