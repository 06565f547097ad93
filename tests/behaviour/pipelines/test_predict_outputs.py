"""What networks return: of any kind that stands for an image, a label, or one result for a window, and no guesses."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from infinite_tensor import (
    Mask,
    Reduction,
    ShapeMismatchError,
    TensorGroup,
    ValidationError,
    open_store,
    predict,
    sl,
)
from tests.support.counting import Counted


def predicted(net: Any, picture: Any, target: Any = None, **options: Any) -> Any:
    """What `predict` makes of a picture, by windows of 32 x 32 pixels that overlap by half unless told otherwise."""
    how: Any = {"window": (32, 32), "overlap": 0.5, "progress": False} | options
    return predict(net, picture, target, **how)


def image(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(1))


PICTURE = image(3, 80, 112)


class Classifier(nn.Module):
    """Scores of one patch."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.features = nn.Conv2d(3, 6, 3, padding=1)
        self.head = nn.Linear(6, classes)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Of shape (batch, classes)."""
        scores: torch.Tensor = self.head(self.features(batch).relu().mean((2, 3)))
        return scores


def each_patch(net: nn.Module, step: int) -> torch.Tensor:
    """What a loop over the patches of `PICTURE` makes of it."""
    patches = PICTURE.unfold(1, 32, step).unfold(2, 32, step).permute(1, 2, 0, 3, 4)
    with torch.no_grad():
        scores: torch.Tensor = net(patches.flatten(0, 1)).T
    return scores.reshape(-1, *patches.shape[:2])


@pytest.mark.parametrize(("overlap", "step", "shape"), [(0.5, 16, (4, 6)), (0.75, 8, (7, 11))])
@pytest.mark.parametrize("pixel", [False, True], ids=["(N, C)", "(N, C, 1, 1)"])
def test_one_result_for_a_window_is_a_pixel_for_each_step(
    overlap: float, step: int, shape: tuple[int, int], pixel: bool, tmp_path: Path
) -> None:
    net = Classifier().eval()
    called = (lambda batch: net(batch)[:, :, None, None]) if pixel else net
    for _ in range(2):
        found = predicted(called, PICTURE, tmp_path / "s.zarr", overlap=overlap)
        assert found.shape == (4, *shape)
        torch.testing.assert_close(found[...], each_patch(net, step))


def test_results_for_windows_are_reduced_and_have_regions() -> None:
    net = Classifier().eval()
    labels = predicted(net, PICTURE, reduce="argmax", region=sl[1:3, 2:5])
    assert (labels.shape, labels.dtype) == ((4, 6), torch.uint8)
    assert torch.equal(labels[...], each_patch(net, 16).argmax(0).to(torch.uint8))
    assert predicted(lambda batch: net(batch)[:, 0], PICTURE).shape == (4, 6)
    # The last windows reach past the end.
    assert predicted(lambda batch: batch.mean((2, 3)), image(3, 81, 20)).shape == (3, 5, 1)


@pytest.mark.parametrize("blend", ["max", "min", "first", None, torch.mul])
def test_results_for_windows_are_not_blended(blend: Any) -> None:
    one, other = (predicted(lambda batch: batch.mean((2, 3)) - 0.5, PICTURE, blend=way)[...] for way in (blend, "mean"))
    assert torch.equal(one, other)


def test_results_for_windows_of_an_image_without_any_are_refused() -> None:
    with pytest.raises(ValidationError, match="edge='clip'"):
        predicted(Classifier().eval(), PICTURE[:, :20], edge="drop")


def test_a_map_of_windows_is_a_mask_of_the_image() -> None:
    seen = torch.zeros(1, 64, 64)
    seen[:, 32:48, 16:32] = 1
    chosen = predicted(lambda batch: batch.amax((1, 2, 3)), seen, window=(16, 16), overlap=0)
    found = predicted(lambda batch: batch, seen, window=(16, 16), where=Mask(chosen[...] > 0, scale=16))
    assert found.shape == (1, 64, 64)


def test_scores_of_a_signal_are_no_samples_of_it() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(512, 2)).eval()
    signal = image(5120)
    found = predicted(net, signal, window=512)
    assert found.shape == (2, 19)
    torch.testing.assert_close(found[:, 3], net(signal[None, 768:1280])[0].detach())


def test_samples_without_channels_are_samples_where_they_are_as_many_as_the_window_or_its_scale_says() -> None:
    signal = image(5120)
    same = predicted(lambda batch: batch[:, 0], signal, window=512)
    torch.testing.assert_close(same[...], signal)
    half = predicted(lambda batch: batch[:, 0, ::2], signal, window=512, overlap=0.5, scale=0.5)
    torch.testing.assert_close(half[...], signal[::2])


def test_a_scale_that_is_not_that_of_results_for_windows_is_told() -> None:
    with pytest.raises(ShapeMismatchError, match="leave scale out"):
        predicted(Classifier().eval(), PICTURE, scale=1 / 32)


class Named(NamedTuple):
    scores: torch.Tensor
    loss: None


Fields = make_dataclass("Fields", ["scores", "loss"])


@pytest.mark.parametrize("kind", [Named, Fields, OrderedDict, dict])
def test_outputs_keep_their_names_and_none_is_left_out(kind: Callable[..., Any]) -> None:
    found = predicted(lambda batch: kind(scores=batch, loss=None), PICTURE)
    assert isinstance(found, TensorGroup)
    assert list(found) == ["scores"]
    torch.testing.assert_close(found["scores"][...], PICTURE)


def test_an_output_of_a_tuple_that_is_none_leaves_the_others_their_numbers() -> None:
    assert list(predicted(lambda batch: (batch, None, batch), PICTURE)) == ["0", "2"]
    with pytest.raises(ValidationError, match="return result"):
        predicted(lambda _batch: None, PICTURE)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
def test_labels_are_kept_where_windows_do_not_overlap(dtype: torch.dtype) -> None:
    found = predicted(lambda batch: (batch[:, 0] > 0.5).to(dtype), PICTURE, overlap=0)
    assert found.dtype == dtype
    assert torch.equal(found[...], (PICTURE[0] > 0.5).to(dtype))


def test_labels_of_windows_that_overlap_need_a_blend_that_takes_them() -> None:
    net = functools.partial(torch.argmax, dim=1)
    with pytest.raises(ValidationError, match="blend='last'"):
        predicted(net, PICTURE)
    assert torch.equal(predicted(net, PICTURE, blend="last")[...], PICTURE.argmax(0))
    assert predicted(net, PICTURE, dtype="float32").dtype == torch.float32


@pytest.mark.parametrize(
    "returned",
    [
        lambda array: array,
        lambda array: np.broadcast_to(array[:, :1], array.shape),
        lambda array: array.astype(">f4"),
        lambda array: array[..., ::-1],
    ],
)
def test_numpy_is_taken_as_it_is(returned: Callable[[Any], Any]) -> None:
    found = predicted(lambda batch: returned(batch.numpy()), PICTURE, overlap=0, padding="constant")
    first = returned(PICTURE[None, :, :32, :32].numpy())[0].astype(np.float32)
    assert np.array_equal(found[:, :32, :32].numpy(), first)


def test_what_torch_has_no_dtype_for_is_told() -> None:
    with pytest.raises(ValidationError, match="convert the"):
        predicted(lambda batch: batch.numpy().astype(object), PICTURE)


def test_masked_elements_that_a_network_returns_are_refused() -> None:
    with pytest.raises(ValidationError, match="filled"):
        predicted(lambda batch: np.ma.masked_greater(batch.numpy(), 0), PICTURE)


def test_no_message_shows_the_pixels_of_what_was_returned() -> None:
    shown = r"<Tensor of shape \(4, 3, 32, 32\), torch.float32>"
    with pytest.raises(ValidationError, match=rf"got \({shown}, \[{shown}\]\)"):
        predicted(lambda batch: ((batch, [batch]), batch), PICTURE)


@pytest.mark.parametrize(
    ("net", "window"),
    [
        (lambda batch: nn.functional.avg_pool2d(batch[:, :1].expand(-1, 32, -1, -1), 4).movedim(1, -1), (32, 32)),
        (lambda batch: batch[:, 0, :, :16], (32, 32)),
        (lambda batch: batch[:, 0, :2], (16, 32, 32)),
    ],
    ids=["channels last", "tokens", "an image of a volume"],
)
def test_other_scales_along_other_dimensions_are_asked_for(net: Any, window: tuple[int, ...]) -> None:
    picture = PICTURE if len(window) == 2 else image(8, 16, 32, 32)
    with pytest.raises(ShapeMismatchError, match="give scale="):
        predicted(net, picture, window=window)


@pytest.mark.parametrize("classes", [1, 4])
def test_channels_of_a_signal_that_come_last_are_asked_for(classes: int) -> None:
    def net(batch: torch.Tensor) -> torch.Tensor:
        return batch.movedim(1, -1) * torch.arange(1, 1 + classes)

    signal = image(5120)
    with pytest.raises(ShapeMismatchError, match="scale=1/"):
        predicted(net, signal, window=512)
    found = predicted(lambda batch: net(batch).movedim(-1, 1), signal, window=512)
    torch.testing.assert_close(found[...], signal * torch.arange(1, 1 + classes)[:, None])
    assert predicted(net, signal, window=512, scale=classes / 512 if classes > 1 else 1 / 256).shape[0] == 512


@pytest.mark.parametrize(("blend", "picked"), [("max", torch.maximum), ("min", torch.minimum)])
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("shift", [-2, 2])
def test_the_largest_and_the_smallest_are_those_of_windows_alone(
    blend: str, picked: Any, named: bool, shift: int
) -> None:
    def net(batch: torch.Tensor) -> torch.Tensor:
        return batch + shift

    found = predicted(net, PICTURE, blend=blend if named else picked)
    torch.testing.assert_close(found[...], PICTURE + shift)
    labels = predicted(net, PICTURE, blend=blend if named else picked, reduce="argmax")
    assert torch.equal(labels[...], PICTURE.argmax(0).to(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int64, torch.bool, torch.bfloat16])
def test_the_largest_and_the_smallest_of_labels_are_those_of_windows(dtype: torch.dtype) -> None:
    pixels = (PICTURE[0] * 3).to(dtype)
    for blend in ("max", "min"):
        found = predicted(lambda batch: (batch[:, 0] * 3).to(dtype), PICTURE, blend=blend)
        assert torch.equal(found[...], pixels)


@pytest.mark.parametrize("reduce", ["argmax", Reduction("argmax", 1)], ids=str)
def test_the_largest_of_one_channel_is_refused(reduce: Any) -> None:
    def net(batch: torch.Tensor) -> torch.Tensor:
        return batch[:, :1] - 0.5

    with pytest.raises(ValidationError, match="sigmoid"):
        predicted(net, PICTURE, reduce=reduce)
    found = predicted(net, PICTURE, overlap=0, reduce=lambda values: values[0].sigmoid() > 0.5)
    assert torch.equal(found[...], PICTURE[0] > 0.5)


@pytest.mark.parametrize(
    ("net", "good"),
    [(nn.AvgPool2d(16), 0.5), (lambda batch: (nn.AvgPool2d(8)(batch), nn.AvgPool2d(16)(batch)), 0.5)],
    ids=["one", "of all outputs"],
)
def test_a_stride_of_whole_pixels_is_asked_for(net: Any, good: float) -> None:
    with pytest.raises(ValidationError, match=r"multiple of \(16, 16\)"):
        predicted(net, PICTURE, overlap=0.25)
    predicted(net, PICTURE, overlap=good)


def test_one_result_a_window_lies_beside_pixels_where_they_end_together() -> None:
    def net(batch: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"pixels": nn.AvgPool2d(16)(batch), "patch": batch.mean((2, 3))}

    with pytest.raises(ValidationError, match="overlap=0"):
        predicted(net, PICTURE)
    found = predicted(net, PICTURE, overlap=0)
    alone = predicted(lambda batch: net(batch)["patch"], PICTURE, overlap=0)
    assert torch.equal(found["patch"][...], alone[...])


def test_a_function_around_a_half_network_is_given_what_it_can_normalise() -> None:
    torch.manual_seed(0)
    half, scan = nn.Conv2d(1, 2, 3, padding=1).half(), (image(1, 64, 64) * 60_000).to(torch.int32)
    given = []

    def net(batch: torch.Tensor) -> torch.Tensor:
        given.append(batch.dtype)
        scores: torch.Tensor = half((batch / 30_000 - 1).half())
        return scores.float()

    found = predicted(net, scan, overlap=0, padding="constant")
    assert {*given} == {torch.float32}
    expected = half((scan[None, :, :32, :32] / 30_000 - 1).half()).float()[0].detach()
    torch.testing.assert_close(found[:, :32, :32], expected)


def test_networks_of_two_dtypes_work_together() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.small, self.large = nn.Conv2d(3, 2, 1).half(), nn.Conv2d(3, 2, 1)

        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            """Their sum."""
            summed: torch.Tensor = self.small(batch.half()).float() + self.large(batch)
            return summed

    net = Both().eval()
    for source in (PICTURE, PICTURE.double()):
        found = predicted(net, source)
        torch.testing.assert_close(found[...], net(PICTURE[None])[0].detach())
        assert torch.equal(predicted(lambda batch: net(batch) + 0, source)[...], found[...])


# Several reductions of the scores of one network are several outputs.

NET = nn.Conv2d(3, 5, 3, padding=1)
IMAGE = torch.rand(3, 90, 70, generator=torch.Generator().manual_seed(0))


def confidence(scores: torch.Tensor) -> torch.Tensor:
    return scores.softmax(0).amax(0)


def pair(scores: torch.Tensor) -> torch.Tensor:
    return scores.topk(2, 0).values


REDUCE: dict[str, Any] = {"sure": confidence, "labels": "argmax", "best": pair, "scores": None}


def test_each_is_what_it_is_alone() -> None:
    group = predicted(NET, IMAGE, reduce=REDUCE)
    assert isinstance(group, TensorGroup)
    assert group.shape == (90, 70)
    assert [*group] == [*REDUCE]
    for name, reduction in REDUCE.items():
        alone = predicted(NET, IMAGE, reduce=reduction)
        found: Any = group[name]
        assert (found.shape, found.dtype) == (alone.shape, alone.dtype)
        assert torch.equal(found[...], alone[...])


def test_scores_may_be_of_a_dtype_that_numpy_has_not() -> None:
    half = torch.autocast("cpu", dtype=torch.bfloat16)(NET)
    group, alone = (predicted(half, IMAGE, reduce=each) for each in ({"labels": "argmax"}, "argmax"))
    assert torch.equal(group["labels"][...], alone[...])


def test_it_is_continued_in_whatever_order_they_are_given(tmp_path: Path) -> None:
    net = Counted(NET)
    corner = Mask(lambda pixels: pixels[0].start < 32 and pixels[1].start < 32)
    with open_store(tmp_path / "s.zarr") as store:
        predicted(net, IMAGE, store, reduce={"labels": "argmax", "sure": confidence}, where=corner, version=1)
    before = len(net.calls)
    with open_store(tmp_path / "s.zarr") as store:
        group = predicted(net, IMAGE, store, reduce={"sure": confidence, "labels": "argmax"}, version=1)
        again = len(net.calls) - before
        predicted(net, IMAGE, store, reduce={"sure": confidence, "labels": "argmax"}, version=1)
        assert len(net.calls) - before == again
        assert store.tensor_ids() == ["prediction/labels", "prediction/sure"]
        assert torch.equal(store.open_group("prediction")["sure"][...], group["sure"][...])
        assert torch.equal(group["labels"][...], predicted(NET, IMAGE, reduce="argmax")[...])


@pytest.mark.parametrize(
    "other",
    [
        {"labels": "argmax", "best": confidence},
        {"labels": "argmax", "sure": pair},
        {"labels": confidence, "sure": "argmax"},
        {"labels": "argmax"},
        "argmax",
    ],
    ids=["name", "function", "exchanged", "fewer", "one"],
)
def test_other_reductions_under_the_same_id_are_refused(other: Any, tmp_path: Path) -> None:
    with open_store(tmp_path / "s.zarr") as store:
        predicted(NET, IMAGE, store, reduce={"labels": "argmax", "sure": confidence})
        with pytest.raises(ValidationError, match="overwrite=True"):
            predicted(NET, IMAGE, store, reduce=other)


def test_one_tensor_does_not_become_several(tmp_path: Path) -> None:
    with open_store(tmp_path / "s.zarr") as store:
        predicted(NET, IMAGE, store)
        with pytest.raises(ValidationError, match="overwrite=True"):
            predicted(NET, IMAGE, store, reduce=REDUCE)
        predicted(NET, IMAGE, store, reduce=REDUCE, overwrite=True)
        assert store.tensor_ids() == [f"prediction/{name}" for name in sorted(REDUCE)]


@pytest.mark.parametrize("unfit", [lambda scores: scores.sum(), lambda _scores: 0.5, lambda scores: (scores, scores)])
@pytest.mark.parametrize(
    "kind", [lambda *outputs: dict(zip("ab", outputs, strict=True)), lambda *outputs: outputs, Named]
)
def test_an_output_that_is_no_image_is_to_be_left_out(kind: Any, unfit: Any) -> None:
    with pytest.raises((ShapeMismatchError, ValidationError), match="leave out"):
        predicted(lambda batch: kind(batch, unfit(batch)), PICTURE)
