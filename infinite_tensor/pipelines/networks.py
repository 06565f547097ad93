"""How a network is called: on its device, in eval mode, with batches of one size."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import update_wrapper
from typing import Any, ParamSpec, TypeAlias, TypeVar
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from infinite_tensor.errors import ShapeMismatchError, ValidationError
from infinite_tensor.support.forks import renew_in_children
from infinite_tensor.support.functions import Calling
from infinite_tensor.support.given import quoted
from infinite_tensor.support.gradients import in_inference_mode
from infinite_tensor.support.interrupts import Mark
from infinite_tensor.values.fingerprint import Reach, Setting, networks_in

P = ParamSpec("P")
T = TypeVar("T")
Index: TypeAlias = tuple[int, ...]
Outputs: TypeAlias = dict[str | None, torch.Tensor]
"""What a network returned, by name; of one that returns a single tensor under None."""


class _Evaluating:
    """Networks that are in eval mode for as long as somebody calls them, on any number of threads.

    Modules may be parts of several networks. Each has its own mode again when nobody is at it any more, also where a
    Ctrl-C came in between, and in a child that is forked meanwhile.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # The marks of those who are at a module, each with its thread.
        self._callers: WeakKeyDictionary[nn.Module, list[tuple[int, Mark]]] = WeakKeyDictionary()
        self._trained: WeakSet[nn.Module] = WeakSet()
        renew_in_children(self)

    def _renew_after_fork(self) -> None:
        self._lock = threading.Lock()
        here, callers, trained = threading.get_ident(), list(self._callers.items()), list(self._trained)
        # Other threads are not there in a child, and nobody would end their marks.
        own = {module: [each for each in marks if each[0] == here] for module, marks in callers}
        self._callers, self._trained = WeakKeyDictionary(own), WeakSet(trained)
        self._end()

    def __call__(self, networks: Sequence[nn.Module], function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        # Not a context manager: what interrupts one that is about to be entered or left holds it open.
        modules = {module for network in networks for module in network.modules()}
        outer = _HERE.mark, _HERE.held
        held = _HERE.held if _HERE.mark.is_under_way else frozenset()
        if modules <= held:
            return function(*args, **kwargs)
        mark = Mark()
        try:
            with mark.running:
                self._begin(modules, mark)
                _HERE.mark, _HERE.held = mark, held | modules
                try:
                    return function(*args, **kwargs)
                finally:
                    _HERE.mark, _HERE.held = outer
        finally:
            try:
                self._end()
            finally:
                # The first may have been interrupted.
                self._end()

    def _begin(self, modules: Iterable[nn.Module], mark: Mark) -> None:
        with self._lock:
            for module in modules:
                self._callers.setdefault(module, []).append((threading.get_ident(), mark))
                if module.training:
                    self._trained.add(module)
                    module.training = False

    def _end(self) -> None:
        """Give the modules their modes again that nobody is at any more."""
        with self._lock:
            for module, marks in list(self._callers.items()):
                if not any(mark.is_under_way for _, mark in marks):
                    if module in self._trained:
                        module.training = True
                        self._trained.discard(module)
                    del self._callers[module]


class _Here(threading.local):
    """The modules that the calls of this thread have in eval mode while the mark of the innermost is under way.

    Not those of other threads, even of one that waits for this: it may be interrupted, and end before.
    """

    def __init__(self) -> None:
        self.mark = Mark()
        self.held: frozenset[nn.Module] = frozenset()


_HERE = _Here()

evaluating = _Evaluating()
"""``evaluating(networks, function, ...)`` is what a function returns while networks are in eval mode."""


class InEvalMode(Calling):
    """A function that holds networks, which are in eval mode while it runs. Otherwise it is the function itself.

    Parameters
    ----------
    function : callable
        It may run on several threads.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        # Sets __wrapped__ and what the function is called by; its attributes stay its own.
        update_wrapper(self, function, updated=())
        self.networks = networks_in((function,))

    __wrapped__: Callable[..., Any]

    def __call__(self, *args: Any) -> Any:
        """What the function returns."""
        return evaluating(self.networks, self.__wrapped__, *args)

    def _reaches(self) -> Mapping[str, object]:
        return {"reduce": self.__wrapped__}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, InEvalMode) and self.__wrapped__ == other.__wrapped__

    def __hash__(self) -> int:
        return hash(self.__wrapped__)

    def __repr__(self) -> str:
        return repr(self.__wrapped__)


class BatchedNetwork(Calling):
    """The ``f`` of a prediction: calls a network with batches of regions, all of one size.

    The last batch repeats its last region. Most networks round otherwise in batches of other sizes; so the bits of a
    window do not depend on how many are missing when it is computed.

    Parameters
    ----------
    net : callable
        ``net(batch) -> output``: of shape (N, channels, *window) to one of shape (N, ...), or a dict or tuple of these.
    preprocess : callable or None
        Is given each batch, on the device, before `net`.
    batch_size : int
        N.
    device : torch.device
        Where batches go.
    autocast : torch.dtype or None
        What `torch.autocast` computes in.
    channel_dim : int or None
        Which dimension of a region holds the channels; None where there are none, and `net` is given one.
    """

    def __init__(
        self,
        net: Callable[..., Any],
        preprocess: Callable[[torch.Tensor], torch.Tensor] | None,
        batch_size: int,
        device: torch.device,
        autocast: torch.dtype | None,
        channel_dim: int | None,
    ) -> None:
        self.__wrapped__ = net
        self.net = net
        self.preprocess = preprocess
        self.autocast = autocast
        self.batch_size = batch_size
        self._device = device
        self._channel_dim = channel_dim
        self._expected: Mapping[str | None, tuple[tuple[int, ...], torch.dtype]] = {}
        self._kept: dict[Index, Outputs] = {}
        reach = Reach(self, "f")
        self.networks = reach.networks
        # Lazy modules have no weights before a call.
        self.looked = None if any(is_lazy(each) for net in reach.networks for each in net.parameters()) else reach
        self._dtype = dtype_of(net)

    def __getstate__(self) -> dict[str, Any]:
        """All but what is kept, which is for this process."""
        return self.__dict__ | {"_kept": {}, "looked": None}

    def _reaches(self) -> Mapping[str, object]:
        autocast = {} if self.autocast is None else {"autocast": self.autocast}
        return {"net": self.net, "preprocess": self.preprocess, **autocast, "batch_size": Setting(self.batch_size)}

    def prepare(self, *, told: bool, stored: bool) -> None:
        """Before the first call: whether a version says what is called, and whether that is to be compared."""
        self.told, self.stored = told, stored
        if stored and self.looked is not None:
            # Hashed now: a call may fill what it reaches.
            _ = self.looked.values

    def returns(self, expected: Mapping[str | None, tuple[tuple[int, ...], torch.dtype]]) -> None:
        """What the network returns: each output, of one window, has this shape, and is given back in this dtype."""
        self._expected = expected

    def forget(self) -> None:
        """Drop what is kept."""
        self._kept = {}

    def first(self, ctxs: Sequence[Index], regions: Sequence[torch.Tensor]) -> Outputs:
        """What the network returns for its first regions, which is kept for the calls that ask for them."""
        # The network may use its buffer again.
        outputs = {name: output.clone() for name, output in self._outputs(regions).items()}
        for at, ctx in enumerate(ctxs):
            self._kept[ctx] = {name: output[at : at + 1] for name, output in outputs.items()}
        return outputs

    def __call__(self, ctxs: Sequence[Index], regions: Sequence[torch.Tensor]) -> Any:
        """What the network returns for some regions, stacked."""
        known = [self._kept.pop(ctx[: regions[0].ndim - (self._channel_dim is not None)], None) for ctx in ctxs]
        missing = [region for region, kept in zip(regions, known, strict=True) if kept is None]
        computed = self._outputs(missing) if missing else {}
        found = {}
        for name in computed or next(kept for kept in known if kept is not None):
            rest = iter(computed[name].unsqueeze(1)) if computed else iter(())
            parts = [next(rest) if kept is None else kept[name] for kept in known]
            whole = computed[name][: len(missing)] if len(missing) == len(known) else torch.cat(parts)
            found[name] = whole.to(self._expected[name][1])
        return found.get(None, found)

    def _outputs(self, regions: Sequence[torch.Tensor]) -> Outputs:
        """What the network returns for up to a batch of regions, on the CPU, for all of the batch."""
        repeated = [*regions, *[regions[-1]] * (self.batch_size - len(regions))]
        batch = torch.stack(repeated)
        batch = batch.unsqueeze(1) if self._channel_dim is None else batch.movedim(1 + self._channel_dim, 1)
        returned = evaluating(self.networks, in_inference_mode, self._called, batch)
        outputs = {name: self._checked(name, output) for name, output in _named(returned).items()}
        self._check_as_before(outputs)
        return {name: output.cpu() for name, output in outputs.items()}

    def _called(self, batch: torch.Tensor) -> object:
        with self._autocasting():
            batch = batch.to(self._device, non_blocking=True)
            if not (batch.is_floating_point() or batch.is_complex()):
                batch = batch.to(torch.float32)
            if self.preprocess is not None:
                batch = self.preprocess(batch)
            if self._dtype is not None and self.autocast is None and batch.is_floating_point():
                batch = batch.to(self._dtype)
            return self.net(batch)

    def _check_as_before(self, outputs: Outputs) -> None:
        """ShapeMismatchError where a batch has other outputs than those that the prediction was begun with."""
        before = {name: shape for name, (shape, _) in self._expected.items()}
        now = {name: tuple(output.shape[1:]) for name, output in outputs.items()}
        if before and now != before:
            raise ShapeMismatchError(
                f"net returned {_told(now)} for a window, where it had returned {_told(before)} before; it must return "
                "the same outputs for all windows"
            )

    def _autocasting(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.autocast is None else torch.autocast(self._device.type, self.autocast)

    def _checked(self, name: str | None, output: object) -> torch.Tensor:
        named = "" if name is None else f" for {name!r}"
        if not isinstance(output, torch.Tensor):
            raise ValidationError(
                f"net must return a tensor, or a dict or tuple of tensors, got {quoted(output)}{named}; wrap it, as in "
                "lambda batch: net(batch).logits"
            )
        if output.ndim < 2 or len(output) != self.batch_size:
            raise ShapeMismatchError(
                f"net was given a batch of {self.batch_size} and returned shape {tuple(output.shape)}{named}; it must "
                "return a result for each, along the first dimension"
            )
        return output


def _told(shapes: Mapping[str | None, tuple[int, ...]]) -> str:
    return f"shape {shapes[None]}" if None in shapes else f"outputs of shapes {shapes}"


def device_of(net: object) -> torch.device:
    """Where the parameters of the networks in a function are; the CPU where there are none."""
    return next((each.device for network in networks_in((net,)) for each in network.parameters()), torch.device("cpu"))


def dtype_of(net: object) -> torch.dtype | None:
    """What the parameters of the networks in a function are; None where there are none."""
    parameters = (each for network in networks_in((net,)) for each in network.parameters())
    return next((each.dtype for each in parameters if each.is_floating_point()), None)


def _named(returned: object) -> dict[str | None, object]:
    if isinstance(returned, Mapping):
        return {str(name): output for name, output in returned.items()}
    if isinstance(returned, tuple | list):
        return {str(number): output for number, output in enumerate(returned)}
    return {None: returned}
