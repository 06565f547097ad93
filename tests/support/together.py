"""Planning and filling regions of several tensors that are in no group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from infinite_tensor.engine.chain import NodeHolder
from infinite_tensor.filling import FillPlan, FillReport
from infinite_tensor.filling.fill import Request
from infinite_tensor.filling.fillable import Fillable


class _Together(Fillable):
    def __init__(self, requests: Sequence[Request]) -> None:
        self._given = requests

    def _requests(self, region: object, where: object = None) -> Sequence[Request]:  # noqa: ARG002
        return self._given

    def _tensors(self) -> Sequence[NodeHolder]:
        return [request.tensor for request in self._given]


def plan_together(requests: Sequence[Request], **options: Any) -> FillPlan:
    return _Together(requests).plan(None, **options)


def fill_together(requests: Sequence[Request], **options: Any) -> FillReport:
    return _Together(requests).fill(None, **options)
