"""Reading, planning and filling regions of several tensors that are in no group."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import torch

from infinite_tensor import InfiniteTensor

# Inside: several tensors that are in no group.
from infinite_tensor.engine import assemble
from infinite_tensor.engine.chain import NodeHolder, node_of
from infinite_tensor.filling import FillPlan, FillReport
from infinite_tensor.filling.fill import Request
from infinite_tensor.filling.fillable import Fillable
from infinite_tensor.geometry.regions import parse


class _Together(Fillable[Any]):
    def __init__(self, parts: Iterable[tuple[InfiniteTensor, object]]) -> None:
        self._given = [Request(tensor, parse(region, tensor.shape)) for tensor, region in parts]

    def _requests(self, region: object, where: object = None) -> Sequence[Request]:  # noqa: ARG002
        return self._given

    def _read(self, regions: Sequence[object], workers: int | None) -> NoReturn:
        raise NotImplementedError

    def _tensors(self) -> Sequence[NodeHolder]:
        return [request.tensor for request in self._given]


def read_together(*parts: tuple[Any, ...]) -> list[list[torch.Tensor]]:
    """For each tensor, which is given with some regions, these regions, all read in one plan."""
    return assemble.read_together(
        [(node_of(tensor), [parse(region, tensor.shape) for region in regions]) for tensor, *regions in parts]
    )


def plan_together(*parts: tuple[InfiniteTensor, object], **options: Any) -> FillPlan:
    return _Together(parts).plan(None, **options)


def fill_together(*parts: tuple[InfiniteTensor, object], **options: Any) -> FillReport:
    return _Together(parts).fill(None, **options)
