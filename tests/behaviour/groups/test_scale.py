"""Tensors of several resolutions in one group."""

from __future__ import annotations

import itertools
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
import zarr
from tensordict import TensorDict

from infinite_tensor import InfiniteTensor, TensorGroup, ValidationError, from_array, sl
from infinite_tensor.errors import RegionError
from tests.behaviour.groups.world import plain
from tests.support.stores import sample

COARSE, FINE, SAME = plain((None, None)), plain((None, None), 0.5), plain((3, None, None), 0.25)


@pytest.fixture
def group() -> TensorGroup:
    return TensorGroup(
        {"same": SAME, "other": {"coarse": COARSE, "fine": FINE}},
        scale={("other", "coarse"): 1 / 8, ("other", "fine"): 2},
    )


def test_every_tensor_is_read_at_its_own_resolution(group: TensorGroup) -> None:
    place = group[-8:16, 8:24]
    assert torch.equal(place["other", "coarse"], COARSE[-1:2, 1:3])
    assert torch.equal(place["other", "fine"], FINE[-16:32, 16:48])
    assert torch.equal(place["same"], SAME[:, -8:16, 8:24].movedim(0, -1))


def test_the_batch_size_is_that_of_tensors_of_one_resolution(group: TensorGroup) -> None:
    assert group[0:16, 0:8].batch_size == group[0:16, 0:8]["other"].batch_size == torch.Size([])
    coarse = TensorGroup({"same": SAME, "coarse": {"x": COARSE, "y": COARSE}}, scale={"coarse": 0.5})[0:16, 0:8]
    assert (coarse.batch_size, coarse["coarse"].batch_size) == (torch.Size([]), torch.Size([8, 4]))
    # Also where a region happens to have as many pixels of either.
    assert group[0:0, 0:0].batch_size == torch.Size([])


def test_the_batch_size_ends_before_the_first_dimension_of_several_scales() -> None:
    times = TensorGroup({"a": SAME, "b": plain((2, None, None))}, dims=(1, 2), scale={"b": (1, Fraction(1, 2))})
    assert times[0:5, 0:8].batch_size == torch.Size([5])
    assert times[0, 0:8].batch_size == torch.Size([])
    assert times[0:5, 3].batch_size == torch.Size([5])


def test_an_int_is_the_coarser_pixel_that_holds_it(group: TensorGroup) -> None:
    sampled = group.select("same", ("other", "coarse"))
    assert sampled[17, -1]["other", "coarse"] == COARSE[2, -1]
    assert torch.equal(sampled[17, -1]["same"], SAME[:, 17, -1])
    with pytest.raises(RegionError, match=r"'fine'. has scale 2, and pixel 17 of the group is not a single pixel"):
        group[17, -1]


@pytest.mark.parametrize(
    ("region", "coarse"),
    [
        (sl[1:8, 0:8], sl[0:1, 0:1]),
        (sl[0:8, -1:12], sl[0:1, -1:2]),
        (sl[-9:-8, 15:17], sl[-2:-1, 1:3]),
        (sl[5:5, 0:8], sl[0:0, 0:1]),
    ],
)
def test_of_a_coarser_tensor_all_pixels_over_a_region_are_read(
    group: TensorGroup, region: tuple[slice, slice], coarse: tuple[slice, slice]
) -> None:
    rows, columns = region
    place = group[region]
    assert torch.equal(place["other", "coarse"], COARSE[coarse])
    fine = FINE[2 * rows.start : 2 * rows.stop, 2 * columns.start : 2 * columns.stop]
    assert torch.equal(place["other", "fine"], fine)
    if place["same"].numel():
        assert torch.equal(place["other", "coarse"], group[group.align(region)]["other", "coarse"])


def test_a_step_is_not_scaled(group: TensorGroup) -> None:
    with pytest.raises(RegionError, match=r"dimension 0: .*a step of 2 cannot be scaled"):
        group[0:8:2, 0:8]


def test_align_is_the_smallest_region_of_whole_pixels_around_one(group: TensorGroup) -> None:
    assert group.align(sl[1:9, -3:3]) == sl[0:16, -8:8]
    assert group.align(sl[0:8, 5]) == sl[0:8, 5]
    assert group[group.align(sl[1:9, -3:3])]["same"].shape == (16, 16, 3)
    with pytest.raises(ValidationError, match="step"):
        group.align(sl[0:9:2, 0:8])


def test_align_meets_all_scales_at_once() -> None:
    group = TensorGroup({"thirds": COARSE, "halves": FINE}, scale={"thirds": 2 / 3, "halves": 0.5})
    assert group.align(sl[1:6, 7:8]) == sl[0:6, 6:12]
    assert group[0:6, 6:12]["thirds"].shape == (4, 4)


def test_finite_extents_agree_in_pixels_of_the_group() -> None:
    fine, coarse = plain((8, 12)), plain((2, 3))
    group = TensorGroup({"fine": fine, "coarse": coarse}, dims=(0, 1), scale={"coarse": 0.25})
    assert group.shape == (8, 12)
    assert group.align(sl[1:, -1:]) == sl[0:8, 8:12]
    assert torch.equal(group[4:, :8]["coarse"], coarse[1:, :2])
    with pytest.raises(ValidationError, match=r"'fine' has .8, 12., 'coarse' has .4, 6."):
        TensorGroup({"fine": fine, "coarse": coarse}, dims=(0, 1), scale={"coarse": 0.5})
    assert TensorGroup({"fine": fine}, dims=(0, 1), scale=5).shape == (2, 3)


LINE = torch.arange(33.0)
"""Of which each tensor below holds every pixel, every second one, and so on."""


def every(step: int) -> InfiniteTensor:
    return from_array(LINE[::step])


@pytest.mark.parametrize("steps", sample(itertools.permutations((1, 2, 5)), (1, 2, 5), (5, 2, 1)), ids=str)
@pytest.mark.parametrize("extent", [29, 30, 31])
def test_tensors_of_one_image_keep_their_last_pixels_where_extents_do_not_divide(
    steps: tuple[int, ...], extent: int, tmp_path: Path
) -> None:
    lines = {str(step): LINE[:extent:step] for step in steps}
    group = TensorGroup(
        {key: from_array(line) for key, line in lines.items()},
        dims=(0,),
        scale={str(step): Fraction(steps[0], step) for step in steps},
    )
    assert group.shape == (len(lines[str(steps[0])]),)
    group.export(..., tmp_path / "group.zarr", progress=False)
    group.save_tensordict(..., tmp_path / "group")
    exported, saved = zarr.open_group(tmp_path / "group.zarr"), TensorDict.load_memmap(tmp_path / "group")
    for key, line in lines.items():
        for found in (group[...][key], group[:][key], group[0 : extent + 9][key], group.stored_only(7)[...][key]):
            assert len(found) == len(line)
        assert torch.equal(group[...][key], line)
        assert torch.equal(torch.from_numpy(np.asarray(exported[key])), line)
        assert torch.equal(saved[key], line)
        step = Fraction(int(key), steps[0])
        for start, stop in itertools.combinations(range(group.shape[0] + 1), 2):
            over = [i for i in range(len(line)) if i * step < stop and (i + 1) * step > start]
            assert torch.equal(group[start:stop][key], line[over])
    assert group.align(sl[0:extent]) == sl[0 : group.shape[0]]


def test_a_group_of_such_tensors_may_be_in_another_group() -> None:
    odd = TensorGroup({"all": every(1), "half": every(2)}, dims=(0,), scale={"half": 0.5})
    both = TensorGroup({"odd": odd, "third": every(3)}, dims={"third": (0,)}, scale={"third": 1 / 3})
    assert both.shape == (33,)
    assert torch.equal(both[...]["odd", "half"], LINE[::2])
    assert odd.select("half")[...]["half"].shape == (17,)


@pytest.mark.parametrize(("step", "extent"), [(2, 16), (2, 18), (4, 8), (4, 10)])
def test_tensors_that_do_not_end_together_are_no_group(step: int, extent: int) -> None:
    other = from_array(torch.zeros(extent))
    with pytest.raises(ValidationError, match=r"have the same extent .*'all' has .33., 'other' has"):
        TensorGroup({"all": every(1), "other": other}, dims=(0,), scale={"other": Fraction(1, step)})


@pytest.mark.parametrize("scale", [0, -1, "1/8", float("inf"), float("nan"), 0.1234567891, True, (1,), (1, 1, 1), {}])
def test_what_is_no_scale_is_an_error(scale: object) -> None:
    if scale == {}:
        scale = {"q": 1}
    with pytest.raises(ValidationError, match="scale"):
        TensorGroup({"a": COARSE}, scale=scale)


def test_a_float_means_the_ratio_that_it_is_nearest_to() -> None:
    assert TensorGroup({"a": COARSE}, scale=1 / 3).scale("a") == (Fraction(1, 3), Fraction(1, 3))
    assert TensorGroup({"a": COARSE}, scale=(2, 0.125)).scale("a") == (Fraction(2), Fraction(1, 8))


def test_coordinates_stay_exact_far_away_and_within_the_limit(group: TensorGroup) -> None:
    far = 2**49
    assert group[far : far + 8, 0:8]["other", "coarse"].shape == (1, 1)
    with pytest.raises(RegionError, match="beyond the limit"):
        group[2 * far : 2 * far + 8, 0:8]
