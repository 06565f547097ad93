"""Reads within code that torch compiles or exports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from infinite_tensor import InfiniteTensor, sl
from tests.behaviour.test_workers import meeting
from tests.support import compiling
from tests.support.building import built
from tests.support.compiling import compiled
from tests.support.interpreters import run

fresh = compiling.fresh

LOADING = """
import sys, torch, infinite_tensor
torch.export.load(sys.argv[1]).module()(torch.ones(2, 2))
"""


def ramp(ctx: tuple[int, ...]) -> torch.Tensor:
    return torch.arange(16.0).reshape(4, 4) + 100 * ctx[0] + 10_000 * ctx[1]


def plane() -> InfiniteTensor:
    return built(ramp, (4, 4))


def image(ctx: tuple[int, ...]) -> torch.Tensor:
    return torch.arange(24).reshape(2, 3, 4) + 1000 * ctx[2]


@pytest.mark.parametrize(
    "region",
    [sl[0, 1, 2], sl[..., -5:9], sl[:, ::-1, 9:-5:-2], sl[1:, -1, 3], sl[-1, ..., 4:4]],
)
@pytest.mark.parametrize("dims", [None, ("c", "y", "x")])
def test_compiled_code_reads_what_is_read_without(region: Any, dims: Any) -> None:
    tensor = built(image, (2, 3, 4), shape=(2, 3, None), dtype=torch.int64, dims=dims)
    got = compiled(lambda: tensor[region] * 2)()
    assert torch.equal(got, tensor[region] * 2)
    assert (got.dtype, got.shape) == (torch.int64, tensor[region].shape)


def test_compiled_code_reads_a_list_of_regions() -> None:
    tensor = plane()
    first, second = compiled(lambda: tensor[[sl[0:2, 0], sl[3, 4:6]]])()
    assert torch.equal(first, tensor[0:2, 0])
    assert torch.equal(second, tensor[3, 4:6])


def test_a_read_without_one_graph_compiles_too() -> None:
    tensor = plane()
    run = torch.compile(lambda x: x + tensor[0:2, 0:2], backend="aot_eager")
    assert torch.equal(run(torch.ones(2, 2)), 1 + tensor[0:2, 0:2])


def test_code_that_was_exported_in_another_process_says_that_its_tensor_is_not_here(tmp_path: Path) -> None:
    tensor, path = plane(), tmp_path / "program.pt2"
    module: Any = nn.Module()
    module.forward = lambda x: x + tensor[0:2, 0:2]
    torch.export.save(torch.export.export(module, (torch.ones(2, 2),)), path)
    done = run("-c", LOADING, path)
    assert (
        "ReferenceError: the InfiniteTensor read by this compiled code no longer exists, or belongs to another"
        in done.stderr
    )


def test_an_error_of_f_comes_through_compiled_code() -> None:
    class FailureError(Exception):
        pass

    def fail(_ctx: tuple[int, ...]) -> torch.Tensor:
        raise FailureError

    tensor = built(fail, 4)
    with pytest.raises(FailureError):
        compiled(lambda x: x + tensor[0:4])(torch.ones(4))


def test_two_tensors_are_not_mistaken_for_each_other() -> None:
    run = compiled(lambda tensor, x: x + tensor[0:2, 0:2])
    first, second = plane(), built(lambda _: torch.ones(4, 4), (4, 4))
    for tensor in (first, second, first):
        assert torch.equal(run(tensor, torch.ones(2, 2)), 1 + tensor[0:2, 0:2])


@pytest.mark.parametrize("strict", [True, False])
def test_a_read_is_exported_as_one_operator(strict: bool) -> None:
    module, tensor, x = nn.Module(), plane(), torch.ones(2, 3)
    module.forward = lambda x: x + tensor[-1:1, 0:3]
    program = torch.export.export(module, (x,), strict=strict)
    assert "infinite_tensor.read" in str(program.graph)
    assert torch.equal(program.module()(x), x + tensor[-1:1, 0:3])


def test_compiled_code_reads_on_as_many_threads_as_it_says() -> None:
    def tensor() -> InfiniteTensor:
        return built(meeting(2), 4)

    first, second = tensor(), tensor()
    assert compiled(lambda: first.read(slice(0, 8), workers=2) + 1)().tolist() == [1] * 4 + [2] * 4
    one, other = compiled(lambda: second.read([slice(0, 8), slice(8, 16)], workers=2))()
    assert torch.cat([one, other]).tolist() == [x // 4 for x in range(16)]
