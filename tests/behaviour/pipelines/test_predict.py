"""`predict` equals the loop that one would write, at every border, after any interruption, for any network."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import dask.array
import numpy as np
import pytest
import torch
import xarray
import zarr
from distributed import Client
from torch import nn

from infinite_tensor import (
    FillOptions,
    FunctionChangedWarning,
    InfiniteTensor,
    InfiniteTensorError,
    Mask,
    Reduction,
    ShapeMismatchError,
    TensorGroup,
    TensorWindow,
    UncoveredPixelsWarning,
    ValidationError,
    ZarrTileStore,
    from_array,
    open_store,
    predict,
    sl,
)
from infinite_tensor.filling import Progress, TensorReport
from tests.behaviour.pipelines.arrays import Located
from tests.behaviour.pipelines.loops import Sizes, looped
from tests.behaviour.test_hostile_arguments import HOSTILE, error_of
from tests.support.stores import sample


class Net(nn.Module):
    """A small network of two or three dimensions, which counts its calls and what it was given."""

    def __init__(self, channels: int = 3, classes: int = 5, dims: int = 2, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        kind = {2: nn.Conv2d, 3: nn.Conv3d}[dims]
        self.layer = kind(channels, classes, 3, padding=1)
        self.batches: list[Sizes] = []

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """The scores."""
        assert not torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()
        self.batches.append(tuple(batch.shape))
        scores: torch.Tensor = self.layer(batch)
        return scores


def image(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def predicted(net: Any, picture: Any, store: Any = None, **options: Any) -> Any:
    """What `predict` makes of a picture, by windows of 32 x 32 pixels unless others are asked for."""
    how: Any = {"window": (32, 32), "progress": False} | options
    return predict(net, picture, store, **how)


@pytest.mark.parametrize(
    ("shape", "window", "overlap", "stride"),
    [
        ((3, 70, 93), (32, 32), 0.5, (16, 16)),
        ((3, 64, 64), (32, 32), 0.25, (24, 24)),
        ((3, 20, 50), (32, 24), (0.25, 0.5), (24, 12)),
        ((3, 5, 7), (16, 16), 0.25, (12, 12)),
        ((1, 20, 31, 17), (12, 12, 12), 0.5, (6, 6, 6)),
        ((3, 90, 40), (32, 32), 0.75, (8, 8)),
    ],
    ids=str,
)
@pytest.mark.parametrize("where", sample(["memory", "zarr", "hdf5"]))
def test_it_has_the_bits_of_the_loop(
    shape: Sizes, window: Sizes, overlap: Any, stride: Sizes, where: str, tmp_path: Path
) -> None:
    net, picture = Net(shape[0], dims=len(window)).eval(), image(*shape)
    target = {"memory": None, "zarr": tmp_path / "s.zarr", "hdf5": str(tmp_path / "s.h5")}[where]
    found = predicted(net, picture, target, window=window, overlap=overlap)
    assert isinstance(found, InfiniteTensor)
    calls = len(net.batches)
    assert torch.equal(found[...], looped(net, picture, window, stride))
    assert {batch[0] for batch in net.batches[:calls]} == {4}


@pytest.mark.parametrize("batch_size", [1, 3, 4, 5])
def test_the_network_is_given_whole_batches_and_no_more_than_its_windows_make(batch_size: int) -> None:
    net = Net()
    predicted(net, image(3, 150, 150), overlap=0.5, batch_size=batch_size)
    assert set(net.batches) == {(batch_size, 3, 32, 32)}
    # One more shows whether a window depends on its batch.
    assert len(net.batches) == math.ceil(9**2 / batch_size) + (batch_size > 1)


def margin(values: torch.Tensor) -> torch.Tensor:
    largest: torch.Tensor = values.topk(2, 0).values
    return largest[0] - largest[1]


@pytest.mark.parametrize(
    ("reduce", "dtype", "expected"),
    [
        ("softmax", None, lambda scores: scores.softmax(0)),
        ("softmax", "float16", lambda scores: scores.softmax(0).half()),
        ("sigmoid", None, torch.sigmoid),
        (margin, None, margin),
        (lambda values: values[1:3] > 0, None, lambda scores: scores[1:3] > 0),
        ("argmax", None, lambda scores: scores.argmax(0).byte()),
        ("argmax", "int64", lambda scores: scores.argmax(0)),
        (Reduction(margin, 5), None, margin),
        (None, "float64", lambda scores: scores.double()),
    ],
)
def test_scores_become_what_is_asked_for(reduce: Any, dtype: Any, expected: Callable[..., torch.Tensor]) -> None:
    net, picture = Net(), image(3, 50, 60)
    found = predicted(net, picture, overlap=0.5, reduce=reduce, dtype=dtype)
    scores = expected(looped(net.eval(), picture, (32, 32), (16, 16)))
    assert found.dtype == scores.dtype
    torch.testing.assert_close(found[...], scores)


class Reusing(Net):
    """A network that writes all that it returns into one buffer."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """The scores."""
        scores = super().forward(batch)
        if len(self.batches) == 1:
            self.buffer = torch.empty_like(scores)
        return self.buffer.copy_(scores)


def test_a_network_may_return_one_buffer_again_and_again() -> None:
    # The region begins in the middle of a tile, so that the first batch is not the first that is asked for.
    picture, region = image(3, 150, 150), sl[-20:, 60:80]
    reusing, plain = (predicted(net, picture, overlap=0.5, region=region)[...] for net in (Reusing(), Net()))
    assert torch.equal(reusing, plain)


def test_a_second_run_calls_nothing(tmp_path: Path) -> None:
    picture = image(3, 60, 60)
    first = predicted(Net(), picture, tmp_path / "s.zarr", window=32, dims=("c", "y", "x"))
    again = Net()
    found = predicted(again, picture, tmp_path / "s.zarr", window=32, dims=("c", "y", "x"))
    assert not again.batches
    assert torch.equal(found[...], first[...])


@pytest.mark.parametrize("reduce", [None, "argmax"])
@pytest.mark.parametrize("fails_at", sample([2, 5, 9], 5))
def test_after_an_interruption_only_what_is_missing_is_computed(
    reduce: str | None, fails_at: int, tmp_path: Path
) -> None:
    picture, whole = image(3, 120, 90), Net()
    options: dict[str, Any] = {"overlap": 0.5, "reduce": reduce, "batch_size": 2, "version": 1}
    expected = predicted(whole, picture, **options)

    class Stops(Net):
        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            if len(self.batches) == fails_at:
                raise KeyboardInterrupt
            return super().forward(batch)

    stops = Stops()
    with pytest.raises(KeyboardInterrupt):
        predicted(stops, picture, tmp_path / "s.zarr", **options)
    again = Stops()
    again.batches += [(0,)] * 100
    found = predicted(again, picture, tmp_path / "s.zarr", **options)
    # A batch was lost at most, and one may be half full at the end of each run.
    assert len(again.batches) - 100 <= len(whole.batches) - fails_at + 3
    assert torch.equal(found[...], expected[...])


def test_other_weights_are_refused_and_never_meet_old_pixels(tmp_path: Path) -> None:
    picture = image(3, 40, 40)
    predicted(Net(seed=0), picture, tmp_path / "s.zarr")
    for net in (Net(seed=1), OTHER, OTHER.forward):
        with pytest.raises(ValidationError, match=r"(?s)the weights of .*another tensor_id, or overwrite=True"):
            predicted(net, picture, tmp_path / "s.zarr")
    with pytest.raises(ValidationError, match=r"(?s)output_window.*another tensor_id, or overwrite=True"):
        predicted(Net(seed=0), picture, tmp_path / "s.zarr", window=(24, 24))
    new = predicted(Net(seed=1), picture, tmp_path / "s.zarr", overwrite=True)
    assert torch.equal(new[...], looped(Net(seed=1).eval(), picture, (32, 32), (24, 24)))


OTHER = Net(seed=2)


def test_what_a_function_around_the_network_holds_counts_too(tmp_path: Path) -> None:
    def shifted(by: float) -> Callable[[torch.Tensor], torch.Tensor]:
        mean, net = torch.full((3, 1, 1), by), Net().eval()
        return lambda batch: net(batch - mean)

    picture = image(3, 40, 40)
    found = predicted(shifted(0.25), picture, tmp_path / "s.zarr")
    assert torch.equal(found[...], looped(lambda x: Net().eval()(x - 0.25), picture, (32, 32), (24, 24)))
    predicted(shifted(0.25), picture, tmp_path / "s.zarr")
    for other in (shifted(0.5), Net()):
        with pytest.raises(ValidationError, match="`mean`, a variable around"):
            predicted(other, picture, tmp_path / "s.zarr")


def test_another_batch_size_is_told(tmp_path: Path) -> None:
    predicted(Net(), image(3, 40, 40), tmp_path / "s.zarr")
    with pytest.warns(FunctionChangedWarning, match="prediction"):
        predicted(Net(), image(3, 40, 40), tmp_path / "s.zarr", batch_size=2)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_network_on_a_gpu_stores_what_it_would_on_the_cpu() -> None:
    pixels = torch.randint(0, 99, (3, 150, 170)).float()
    net = nn.Conv2d(3, 4, 1)
    # Whole numbers, so that no sum is rounded.
    for values in net.parameters():
        values.data = torch.randint(-9, 9, values.shape).float()
    whole = predicted(net, pixels, window=(64, 64), overlap=0.5)[...]
    assert torch.equal(predicted(net.cuda(), pixels, window=(64, 64), overlap=0.5)[...], whole)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float64])
def test_other_numbers_become_float32_and_are_not_scaled(dtype: torch.dtype) -> None:
    picture = (image(3, 40, 40) * 255).to(dtype)
    found = predicted(Net(), picture)
    assert torch.equal(found[...], looped(Net().eval(), picture.float(), (32, 32), (24, 24)))


def test_channels_may_be_last_or_missing() -> None:
    picture, net = image(3, 50, 40), Net()
    first = predicted(net, picture)
    last = predicted(net, picture.permute(1, 2, 0), dims=("y", "x", "c"))
    assert torch.equal(first[...], last[...])
    grey = predicted(Net(1), picture[0])
    assert torch.equal(grey[...], looped(Net(1).eval(), picture[:1], (32, 32), (24, 24)))
    flat = predicted(lambda batch: batch.sum(1), picture)
    assert flat.shape == (50, 40)
    torch.testing.assert_close(flat[...], picture.sum(0))


def test_a_subclass_of_tensor_is_an_image_as_any_other() -> None:
    picture = image(3, 40, 40)
    found = predicted(torch.neg, picture.as_subclass(Located), window=(16, 16), blend="mean")
    assert torch.equal(found[...], -picture)


@pytest.mark.parametrize("shape", [(2, 50, 2), (1, 30, 1), (3, 2, 2)])
def test_a_narrow_image_has_its_channels_first(shape: Sizes) -> None:
    found = predicted(lambda batch: batch, image(*shape), window=(16, 16), blend="mean")
    assert found.shape == shape


@pytest.mark.parametrize("as_tuple", [False, True])
def test_several_outputs_are_a_group(as_tuple: bool, tmp_path: Path) -> None:
    scorer, picture = Net(), image(3, 60, 50)

    def net(batch: torch.Tensor) -> Any:
        scores = scorer(batch)
        coarse = nn.functional.avg_pool2d(scores, 2)
        return (scores, coarse) if as_tuple else OrderedDict(out=scores, coarse=coarse)

    out, coarse = ("0", "1") if as_tuple else ("out", "coarse")
    scorer.eval()
    for _ in range(2):
        found = predicted(net, picture, tmp_path / "s.zarr", overlap=0.5, reduce={out: "argmax"})
    assert isinstance(found, TensorGroup)
    scores = looped(scorer, picture, (32, 32), (16, 16))
    assert torch.equal(found[out][...], scores.argmax(0).to(torch.uint8))
    assert found[coarse].shape == (5, 30, 25)
    with ZarrTileStore(tmp_path / "s.zarr", mode="r") as store:
        opened = store.open_group("prediction")
        assert [*opened.shape] == [*found.shape]
        assert torch.equal(opened[out][...], found[out][...])
    with pytest.raises(ValidationError, match=r"reduce has entries for \['other'\]"):
        predicted(net, picture, reduce={"other": "argmax"})


@pytest.mark.parametrize(
    ("net", "names"),
    [
        (lambda x: {"out": x, "aux": 2 * x}, ["out", "aux"]),
        (lambda x: tuple(x + k for k in range(12)), [str(k) for k in range(12)]),
    ],
)
def test_outputs_keep_the_order_of_the_network(net: Any, names: list[str], tmp_path: Path) -> None:
    for given in ({}, {}, {"region": sl[0:8, 0:8]}, {"overwrite": True}):
        found = predicted(net, image(1, 32, 32), tmp_path / "s", overlap=0, **given)
        assert list(found.keys()) == names


@pytest.mark.filterwarnings("ignore::infinite_tensor.FunctionChangedWarning")
def test_outputs_keep_the_order_in_which_they_are_stored(tmp_path: Path) -> None:
    for net in (lambda x: {"aux": x + 1, "out": x}, lambda x: {"out": x, "aux": x + 1}):
        # The other region is computed by the second one.
        for region in (sl[0:32, 0:32], sl[0:32, 32:64]):
            aux, out = predicted(net, image(1, 32, 64), tmp_path / "s", overlap=0, region=region).values()
    assert torch.equal(aux[...], out[...] + 1)


@pytest.mark.parametrize(
    ("layer", "scale", "shape"),
    [
        (nn.Upsample(scale_factor=2), 2, (3, 100, 82)),
        (nn.AvgPool2d(4), 0.25, (3, 13, 11)),
        (nn.AvgPool2d((2, 1)), (0.5, 1), (3, 25, 41)),
    ],
    ids=str,
)
def test_the_output_may_have_another_resolution(layer: nn.Module, scale: Any, shape: Sizes) -> None:
    picture = image(3, 50, 41)
    given = None if isinstance(scale, int | float) else scale
    found = predicted(layer, picture, overlap=0.5, blend="mean", scale=given)
    assert found.shape == shape
    inside = tuple(slice(0, n - 1) for n in shape[1:])
    torch.testing.assert_close(found[(slice(None), *inside)], layer(picture[None])[(0, slice(None), *inside)])
    again = predicted(layer, picture, overlap=0.5, blend="mean", scale=scale)
    assert torch.equal(found[...], again[...])


@pytest.mark.parametrize(
    ("net", "options", "error", "word"),
    [
        (nn.Conv2d(3, 2, 3), {}, ShapeMismatchError, "cropped"),
        (nn.Conv2d(3, 2, 1), {"scale": 2}, ShapeMismatchError, "leave scale out"),
        (lambda batch: batch[:, :, None], {}, ShapeMismatchError, "size"),
        (lambda batch: batch[0], {}, ShapeMismatchError, "batch of 4"),
        (lambda _batch: "scores", {}, ValidationError, "tensor"),
        (nn.AvgPool2d(16), {}, ValidationError, "overlap"),
        (lambda batch: batch[:, 0], {"reduce": "argmax"}, ValidationError, "leave reduce out"),
        (nn.Conv2d(3, 5, 1), {"reduce": lambda values: values.sum(1)}, ValidationError, "reduce must"),
        (nn.Conv2d(3, 5, 1), {"reduce": lambda: 0}, ValidationError, "positional"),
    ],
)
def test_what_does_not_fit_the_window_is_explained(
    net: Any, options: dict[str, Any], error: type[Exception], word: str
) -> None:
    with pytest.raises(error, match=word):
        predicted(net, image(3, 50, 50), **options)


@pytest.mark.parametrize(
    "later", [lambda batch: batch[:, :2], lambda batch: batch[..., :30], lambda batch: {"a": batch}]
)
def test_a_network_that_returns_something_else_later_is_told_so(later: Any) -> None:
    # The first batch is two calls.
    ways = iter([lambda batch: batch] * 2)

    def net(batch: torch.Tensor) -> Any:
        return next(ways, later)(batch)

    with pytest.raises(ShapeMismatchError, match="the same outputs for all windows"):
        predicted(net, image(3, 50, 80))


def test_an_error_of_the_first_batch_names_the_prediction() -> None:
    def fails(_batch: torch.Tensor) -> torch.Tensor:
        raise OSError("no network")

    with pytest.raises(OSError, match="no network") as raised:
        predicted(fails, image(3, 50, 50), tensor_id="labels")
    (note,) = raised.value.__notes__
    said = "while computing window (0, 0), (0, 1), (1, 0), (1, 1) of tensor 'labels', by fails defined in "
    assert note.startswith(f"{said}{__file__}:")


@pytest.mark.parametrize(
    ("shape", "options", "word"),
    [
        *[((50, 60, n), {}, "give dims=") for n in (1, 2, 3)],
        ((9, 50, 60, 2), {"window": (8, 32, 32)}, "give dims="),
        ((50, 60), {"window": 32}, "give dims="),
        ((1, 3, 50, 60), {}, r"source\[0\]"),
        ((3, 3, 50, 60), {"window": (32, 32)}, "2 of 4"),
        ((3, 50, 60), {"window": (32, 32, 32), "dims": ("c", "y", "x")}, "3 entries"),
        *[((3, 50, 60), {"window": given, "dims": ("c", "y", "x")}, "window must") for given in (-1, (32, 0))],
        *[((3, 50, 60), {"overlap": given}, "overlap must") for given in (1, 25, (0.5,))],
        ((3, 50, 60), {"batch_size": 0}, "batch_size must"),
        ((3, 50, 60), {"dims": ("y", "x")}, "dims must"),
    ],
    ids=str,
)
def test_arguments_that_do_not_fit_are_told(shape: Sizes, options: dict[str, Any], word: str) -> None:
    with pytest.raises(ValidationError, match=word):
        predicted(Net(), torch.zeros(shape), **options)
    with pytest.raises(ValidationError, match="net must"):
        predicted(None, torch.zeros(3, 50, 60))


def test_background_is_left_out(tmp_path: Path) -> None:
    picture, net = image(3, 256, 256), Net()
    left = torch.zeros(256, 256, dtype=torch.bool)
    left[:, :100] = True
    found = predicted(net, picture, tmp_path / "s.zarr", reduce="argmax", where=left)
    computed = len(net.batches)
    whole = predicted(Net(), picture, reduce="argmax")
    assert torch.equal(found.stored_only()[:, :100], whole[:, :100])
    # The rest is there when it is read.
    assert torch.equal(found[...], whole[...])
    assert computed < 0.7 * len(net.batches)


def test_a_background_of_half_the_image_halves_the_calls_and_the_report_says_so(tmp_path: Path) -> None:
    picture, wanted = image(3, 128, 512), torch.zeros(2, 8)
    wanted[:, :4] = 1
    calls, done = [], list[TensorReport]()
    for name, where in (("all", None), ("half", Mask(wanted, scale=64))):
        net, told = Net(), list[Progress]()
        with ZarrTileStore(tmp_path / f"{name}.zarr", tile_size=64) as store:
            predicted(net, picture, store, overlap=0.5, batch_size=1, where=where, progress=told.append)
        calls.append(len(net.batches))
        assert told[-1].report
        # Before it stands the image, whose blocks are windows too.
        done.append(told[-1].report.tensors[-1])
    # 7 rows of windows, 16 pixels apart; those of one column in 16 lie across the border of the mask.
    assert calls == [7 * 31, 7 * 16]
    assert [(each.windows, each.tiles, each.skipped) for each in done] == [(217, 16, 0), (112, 8, 8)]


@pytest.mark.parametrize("count", sample([2, 3], 3))
def test_shards_make_one_prediction(count: int, tmp_path: Path) -> None:
    picture = image(3, 300, 200)
    whole = predicted(Net(), picture, reduce="argmax")
    for rank in range(count):
        predicted(Net(), picture, tmp_path / "s.zarr", reduce="argmax", shard=(rank, count))
    last = Net()
    found = predicted(last, picture, tmp_path / "s.zarr", reduce="argmax")
    assert not last.batches
    assert torch.equal(found[...], whole[...])


def test_an_unbounded_source_needs_a_region() -> None:
    window = TensorWindow((3, 16, 16))
    ramp = InfiniteTensor((3, None, None), lambda ctx: torch.full((3, 16, 16), float(sum(ctx))), window)
    with pytest.raises(ValidationError, match=r"dimensions \['dim_1', 'dim_2'\] of the source are unbounded"):
        predicted(Net(), ramp)
    net = Net()
    found = predicted(net, ramp, region=sl[-64:64, 100:164], reduce="argmax")
    calls = len(net.batches)
    assert found[-64:64, 100:164].shape == (128, 64)
    assert len(net.batches) == calls


@pytest.mark.parametrize("place", ["s.zarr", "s.h5"])
def test_a_store_may_hold_several_predictions(place: str, tmp_path: Path) -> None:
    pictures = {name: image(3, 60, 60, seed=seed) for seed, name in enumerate(("one", "two"))}
    with open_store(tmp_path / place) as store:
        for name, picture in pictures.items():
            predicted(Net(), picture, store, tensor_id=name)
        assert store.tensor_ids() == ["one", "two"]
        # The same name for another picture is refused, as one for other weights is.
        with pytest.raises(ValidationError, match="another tensor_id, or overwrite=True"):
            predicted(Net(), pictures["two"], store, tensor_id="one")


def test_windows_are_computed_on_several_threads_alike() -> None:
    on_threads, on_one = (predicted(Net(), image(3, 200, 200), reduce="argmax", workers=n)[...] for n in (4, 1))
    assert torch.equal(on_threads, on_one)


def test_overwrite_deletes_no_other_prediction_and_nothing_before_it_can_be_replaced(tmp_path: Path) -> None:
    picture = image(3, 40, 40)
    with ZarrTileStore(tmp_path / "s.zarr") as store:
        for name in ("a/b", "a", "a"):
            predicted(Net(), picture, store, tensor_id=name, overwrite=name == "a")
        assert store.tensor_ids() == ["a", "a/b"]
        kept = store.tensor_info("a").tiles_complete
        for wrong in ({"reduce": "argmx"}, {"blend": "gausian"}, {"region": sl[0:9, 0:9, 0:9]}):
            with pytest.raises(ValidationError):
                predicted(Net(), picture, store, tensor_id="a", overwrite=True, **wrong)
        with pytest.raises(ValidationError, match="leave out overwrite or shard"):
            predicted(Net(), picture, store, tensor_id="a", overwrite=True, shard=(0, 2))
        assert store.tensor_info("a").tiles_complete == kept > 0


def test_overwrite_deletes_nothing_if_another_tensor_has_the_id_of_an_output(tmp_path: Path) -> None:
    picture = image(3, 40, 40)
    with ZarrTileStore(tmp_path / "s.zarr") as store:
        for name in ("a", "a/b"):
            predicted(Net(), picture, store, tensor_id=name)
        kept = store.tensor_info("a").tiles_complete
        with pytest.raises(ValidationError, match=r"contains another tensor 'a/b'; give another tensor_id"):
            predicted(lambda x: {"b": Net()(x), "c": -x}, picture, store, tensor_id="a", overwrite=True)
        assert store.tensor_info("a").tiles_complete == kept > 0


@pytest.mark.parametrize("read", ["source", "upstream", "where", "mask", "stored"])
def test_overwrite_never_deletes_what_the_prediction_is_computed_from(read: str, tmp_path: Path) -> None:
    path, window = tmp_path / "s.zarr", TensorWindow((32, 32))
    given: dict[str, Any] = {"window": 32, "dims": ("y", "x")}
    with ZarrTileStore(path) as store:
        kept = InfiniteTensor((64, 64), lambda _ctx: torch.ones(32, 32), window, tile_store=store, tensor_id="kept")
        kept[...]
        above = InfiniteTensor((64, 64), lambda _ctx, x: x + 1, window, args=[kept], args_windows=[window])
        with ZarrTileStore(path, mode="r") as reader:
            source = {"source": reader.open("kept"), "upstream": above}.get(read, torch.ones(64, 64))
            given |= {"where": {"where": kept, "mask": Mask(kept), "stored": kept.stored_only()}.get(read)}
            with pytest.raises(ValidationError, match=r"would delete tensor 'kept' of .*another tensor_id"):
                predicted(torch.neg, source, path, tensor_id="kept", overwrite=True, **given)
        assert store.tensor_info("kept").tiles_complete == 1
        predicted(torch.neg, source if given["where"] is not None else kept, path, tensor_id="other", **given)
        assert kept[0, 0] == 1


class Slides:
    """An array with objects that cannot be pickled before what it reads, as in the clients of object storage."""

    def __init__(self, array: Any) -> None:
        self.lock, self.rows = threading.Lock(), (row for row in range(3))
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def __getitem__(self, where: Any) -> Any:
        return self.array[where]


HIDDEN: dict[str, Callable[[InfiniteTensor, Any], Any]] = {
    "its tiles": lambda _t, tiles: tiles,
    "as_zarr": lambda t, _tiles: t.as_zarr(),
    "to_xarray": lambda t, _tiles: t.to_xarray(),
    "to_dask": lambda t, _tiles: t.to_dask() + 1,
    "behind a lock": lambda _t, tiles: Slides(tiles),
    "stored_only": lambda t, _tiles: t.stored_only(0).to_dask(),
    "dask over zarr": lambda _t, tiles: dask.array.from_zarr(tiles)[::-1],
    "dask over as_zarr": lambda t, _tiles: dask.array.from_zarr(t.as_zarr()),
    "xarray over dask": lambda _t, tiles: xarray.DataArray(dask.array.from_zarr(tiles), dims=("c", "y", "x")),
}


def over(array: Any) -> InfiniteTensor:
    return from_array(array, dims=("c", "y", "x"))


def reading(array: Any) -> InfiniteTensor:
    """A tensor over one whose function has the array in its closure."""

    def f(_ctx: object) -> torch.Tensor:
        return torch.as_tensor(np.asarray(array[:, :32, :32]))

    read = InfiniteTensor((1, 64, 64), f, TensorWindow((1, 32, 32)), version=1, dims=("c", "y", "x"))
    return read.map(torch.neg, dims=(1, 2))


@pytest.mark.parametrize(
    ("place", "read", "hidden"),
    [
        *(("disk", over, hidden) for hidden in HIDDEN),
        *(("memory", read, hidden) for read in (over, reading) for hidden in ("its tiles", "to_xarray")),
    ],
)
def test_overwrite_deletes_no_source_whatever_hides_it(
    place: str, read: Callable[[Any], InfiniteTensor], hidden: str, tmp_path: Path
) -> None:
    target = str(tmp_path / "s") if place == "disk" else f"memory://{tmp_path.name}"
    with ZarrTileStore(target, tile_size=32) as store:
        predicted(torch.neg, over(torch.ones(1, 64, 64)), store)
        store.open("prediction").pyramid(1)[0].fill(progress=False)
        for name in ("prediction", "prediction/level-1"):
            tiles = zarr.open_array(f"{target}/{store.tensor_info(name).location}", mode="r")
            source = read(HIDDEN[hidden](ZarrTileStore(target, mode="r").open(name), tiles))
            with pytest.raises(ValidationError, match=f"would delete tensor '{name}'"):
                predicted(torch.neg, source, target, version=1, overwrite=True)
        assert (store.open("prediction")[...] == -1).all()
        # Another tensor of the same store is deleted.
        for _ in range(2):
            predicted(torch.neg, source, target, version=1, tensor_id="other", overwrite=True)


def test_overwrite_deletes_a_copy_of_the_source_in_another_store(tmp_path: Path) -> None:
    window = TensorWindow((32, 32))
    with ZarrTileStore(tmp_path / "s.zarr") as store, ZarrTileStore(tmp_path / "copy.zarr") as copy:
        kept = InfiniteTensor((64, 64), lambda _ctx: torch.ones(32, 32), window, tile_store=store, tensor_id="kept")
        kept[...]
        store.copy("kept", copy)
        found = predicted(torch.neg, kept, copy, window=32, dims=("y", "x"), tensor_id="kept", overwrite=True)
        assert found[0, 0, 0] == -1
        assert kept[0, 0] == 1


def test_something_else_under_the_id_is_told_with_what_differs(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path / "s.zarr") as store:
        stored: dict[str, Any] = {"tile_store": store, "tensor_id": "prediction"}
        InfiniteTensor((3, None), lambda _ctx: torch.ones(3, 4), TensorWindow((3, 4)), **stored)
        with pytest.raises(ValidationError, match=r"(?s)another definition.*overwrite=True"):
            predicted(Net(), image(3, 40, 40), store)
        with pytest.raises(ValidationError, match="got 'replicate'") as caught:
            predicted(Net(), image(3, 40, 40), store, padding="replicate")
        assert "overwrite" not in str(caught.value)


def test_each_dimension_may_have_a_padding_of_its_own() -> None:
    net, picture = Net().eval(), image(3, 40, 40)
    rows = np.pad(picture.numpy(), ((0, 0), (0, 16), (0, 0)), "reflect")
    whole = torch.from_numpy(np.pad(rows, ((0, 0), (0, 0), (0, 16)), "edge"))
    found, expected = (predicted(net, each, padding=("reflect", "edge")) for each in (picture, whole))
    assert torch.equal(found[...], expected[:, :40, :40])


@pytest.mark.parametrize(
    ("shape", "options", "by"),
    [
        ((3, 96, 144), {"overlap": 0.25}, (24, -48)),
        ((3, 64, 48), {"overlap": 0.5, "reduce": "argmax"}, (16, 16)),
        ((3, 40, 80), {"overlap": 0.75, "blend": "mean"}, (-8, 24)),
        ((3, 24, 24), {"overlap": 0.25}, (0, 24)),
        ((3, 96, 50), {"padding": ("wrap", "reflect")}, (48, 0)),
    ],
    ids=str,
)
def test_an_image_that_closes_may_be_rolled_by_strides(shape: Sizes, options: dict[str, Any], by: Sizes) -> None:
    net, picture = Net().eval(), image(*shape)
    options = {"padding": "wrap"} | options
    found, rolled = (predicted(net, each, **options)[...] for each in (picture, picture.roll(by, (1, 2))))
    assert torch.equal(rolled, found.roll(by, (-2, -1)))


@pytest.mark.parametrize("scale", [2, Fraction(1, 2)])
def test_an_image_that_closes_may_have_a_prediction_of_another_resolution(scale: Any) -> None:
    net, picture = Net().eval(), image(3, 96, 72)

    def resized(batch: torch.Tensor) -> torch.Tensor:
        return nn.functional.interpolate(net(batch), scale_factor=float(scale), mode="bilinear")

    pictures = (picture, picture.roll(24, 1))
    found, rolled = (predicted(resized, each, padding="wrap", scale=scale)[...] for each in pictures)
    assert torch.equal(rolled, found.roll(int(24 * scale), 1))


def test_the_seam_of_an_image_that_closes_is_as_smooth_as_its_middle() -> None:
    y, x = torch.meshgrid(*[torch.arange(n) * (2 * math.pi / n) for n in (192, 96)], indexing="ij")
    waves = torch.stack([y.sin(), x.cos(), (y + x).sin()])
    found = predicted(Net(), waves, window=(64, 64), overlap=0.5, padding="wrap")[...]
    for dim in (1, 2):
        steps = (found - found.roll(1, dim)).abs().amax([d for d in range(3) if d != dim])
        assert steps[0] <= steps[1:].max()


def test_only_what_closes_has_windows_before_its_first_pixel(tmp_path: Path) -> None:
    net, picture = Net(), image(3, 96, 50)
    mixed = predicted(net, picture, tmp_path / "s.zarr", padding=("wrap", "edge"))
    assert (mixed.output_window.offset, mixed.edge) == ((0, -8, 0), ("clip", "all", "clip"))
    assert mixed.plan(...).tensors[-1].stored == 10
    with pytest.warns(UncoveredPixelsWarning):
        dropped = predicted(net, picture, padding="wrap", edge="drop")
    assert (dropped.output_window.offset, dropped.edge) == ((0, 0, 0), ("drop", "drop", "drop"))


@pytest.mark.parametrize(
    "padding", [("reflect",), ("reflect", "edge", "wrap"), ("edge", None, 3), 7, ["constant", "x"]]
)
def test_paddings_that_are_none_are_refused(padding: Any) -> None:
    with pytest.raises(ValidationError, match=r"padding.* must be .*got"):
        predicted(Net(), image(3, 40, 40), padding=padding)


def test_a_group_without_one_of_its_outputs_is_completed(tmp_path: Path) -> None:
    scorer, picture = Net().eval(), image(3, 40, 40)

    def net(batch: torch.Tensor) -> dict[str, torch.Tensor]:
        scores = scorer(batch)
        return {"scores": scores, "first": scores[:, 0]}

    with ZarrTileStore(tmp_path / "s.zarr") as store:
        predicted(net, picture, store)
        store.clear_tensor("prediction/first")
        found = predicted(net, picture, store)
        assert torch.equal(found["first"][...], found["scores"][0])


def test_a_group_that_is_overwritten_is_saved_anew(tmp_path: Path) -> None:
    scorer, picture = Net().eval(), image(3, 40, 40)
    for names in ("ab", "bc"):
        named = partial(dict.fromkeys, names)
        predicted(lambda batch, named=named: named(scorer(batch)), picture, tmp_path / "s.zarr", overwrite=True)
    with ZarrTileStore(tmp_path / "s.zarr", mode="r") as store:
        assert list(store.open_group("prediction")) == ["b", "c"]


def test_a_region_may_leave_out_its_last_entries() -> None:
    net = Net()
    picture = image(3, 40, 300)
    labels = predicted(net, picture, window=(16, 16), reduce="argmax", region=sl[0:5])
    calls = len(net.batches)
    assert labels[0:5].shape == (5, 300)
    assert len(net.batches) == calls > 5


# Whatever it is given, it works, or the error is one of ours, and what is stored stays.

SMALL = torch.rand(3, 12, 12, generator=torch.Generator().manual_seed(0))
FREE = ("net", "source", "store", "version", "overwrite", "pyramid", "options")
"""Of what these may be, others tell."""
NAMES = [name for name in (*signature(predict).parameters, *FillOptions.__annotations__) if name not in FREE]


def flipped(batch: torch.Tensor) -> torch.Tensor:
    return torch.cat([batch, batch.flip(1)], 1)


@pytest.mark.parametrize("name", NAMES)
def test_an_argument_is_refused_by_what_it_is(name: str) -> None:
    refused = 0
    for given, value in HOSTILE.items():
        error = error_of(lambda value=value: predicted(flipped, SMALL, **{"window": (8, 8), name: value}))  # type: ignore[misc]
        if error is not None:
            assert isinstance(error, InfiniteTensorError), f"{given}: {type(error).__name__}: {error}"
            assert len(str(error)) < 1500, given
            refused += 1
    assert refused > len(HOSTILE) / 3


WRONG: list[dict[str, Any]] = [
    {"workers": 0},
    {"client": "127.0.0.1:8786"},
    {"progress": "often"},
    {"device": "nowhere"},
    {"region": sl[0:10, "all"]},
    {"region": (0, 8)},
    {"region": 5},
    {"where": torch.ones(3, 3)},
    {"where": Mask(torch.ones(12, 12), origin=5)},
    {"pyramid": "medain"},
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: next(iter(wrong)))
def test_what_does_not_fit_is_refused_before_anything_is_overwritten(wrong: dict[str, Any], tmp_path: Path) -> None:
    before = predicted(flipped, SMALL, tmp_path / "s.zarr", window=(8, 8))[...]
    with pytest.raises(InfiniteTensorError), ZarrTileStore(tmp_path / "s.zarr") as store:
        predicted(flipped, -SMALL, store, window=(8, 8), overwrite=True, **wrong)
    with open_store(tmp_path / "s.zarr", mode="r") as store:
        assert torch.equal(store.open("prediction")[...], before)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"pyramid": "medain"}, "medain"),
        ({"pyramid": "mode", "reduce": {"a": "softmax", "b": torch.exp}}, "mode"),
        ({"pyramid": "mean", "max_memory": "74 MiB"}, "max_memory"),
        ({"client": True}, "cluster"),
    ],
    ids=["unknown method", "method of other dtypes", "memory with levels", "cluster"],
)
def test_levels_and_workers_that_do_not_fit_are_refused_before_anything_is_overwritten(
    wrong: dict[str, Any], told: str, tmp_path: Path
) -> None:
    net, picture = Net(), image(3, 600, 600)
    how: dict[str, Any] = {"window": (128, 128), "overlap": 0}
    with (
        Client(processes=False, n_workers=1, threads_per_worker=1, dashboard_address=None) as client,
        open_store(tmp_path / "s.h5", cache_size_bytes=2**20) as store,
    ):
        kept = predicted(net, picture, store, **how).tile_store.tensor_info("prediction").tiles_complete
        given = wrong | ({"client": client} if "client" in wrong else {})
        with pytest.raises(ValidationError, match=told):
            predicted(net, picture, store, overwrite=True, **how | given)
        assert store.tensor_info("prediction").tiles_complete == kept > 0


def test_sizes_may_be_numpy_arrays() -> None:
    picture = image(3, 70, 93)
    found = predicted(Net(), picture, window=np.array([32, 24]), overlap=np.array([0.5, 0.25]), shard=np.array([0, 1]))
    assert torch.equal(found[...], predicted(Net(), picture, window=(32, 24), overlap=(0.5, 0.25))[...])
    assert TensorWindow(np.array([8, 4])) == TensorWindow((8, 4))  # type: ignore[arg-type]


def failing(_batch: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("no such planet")


@pytest.mark.parametrize(
    "wrong",
    [*WRONG, {"max_memory": 1}, {"reduce": "argmin"}, {"reduce": {}}, {"blend": "sharp"}, {"dtype": "text"}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_what_does_not_fit_is_refused_before_a_store_is_created(wrong: dict[str, Any], tmp_path: Path) -> None:
    for target in (tmp_path / "new" / "s.zarr", str(tmp_path / "s.h5")):
        with pytest.raises(InfiniteTensorError):
            predicted(flipped, SMALL, target, window=(8, 8), **wrong)
    assert list(tmp_path.iterdir()) == []


def test_a_network_that_fails_creates_no_store(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no such planet"):
        predicted(failing, SMALL, tmp_path / "s.zarr", window=(8, 8))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("word", "advice"),
    [
        ("worker", "'workers'"),
        ("batchsize", "'batch_size'"),
        ("roi_size", "'window'"),
        ("mode", "'blend'"),
        ("target", ""),
    ],
)
def test_an_unknown_word_is_refused_before_a_store_is_created(word: str, advice: str, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=f"'{word}'.*{advice}"):
        predicted(flipped, SMALL, tmp_path / "s.zarr", window=(8, 8), **{word: 2})
    assert list(tmp_path.iterdir()) == []
