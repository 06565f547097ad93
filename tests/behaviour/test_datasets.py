"""Patches of a tensor as datasets: which there are, where they lie, and what an item is."""

from __future__ import annotations

import copy
import hashlib
import itertools
import pickle
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from infinite_tensor import (
    GridDataset,
    InfiniteTensor,
    MemoryTileStore,
    PatchDataset,
    TensorGroup,
    TensorWindow,
    ValidationError,
    ZarrTileStore,
    from_array,
    sl,
)
from infinite_tensor.errors import RegionError
from tests.support.building import built
from tests.support.counting import Counted
from tests.support.reference import Index


def places(ctx: Index) -> torch.Tensor:
    """Tells each pixel of a plane from all others near the origin."""
    rows = torch.arange(8)[:, None] + 8 * ctx[0]
    return rows * 1000 + torch.arange(8) + 8 * ctx[1]


def channels(ctx: Index) -> torch.Tensor:
    return torch.stack([places(ctx[1:]) + 10**7 * channel for channel in range(3)])


PLANE = built(places, (8, 8), dtype=torch.int64)
IMAGE = built(channels, (3, 8, 8), shape=(3, None, None), dtype=torch.int64)


def of_shape(shape: Sequence[int | None], **options: Any) -> InfiniteTensor:
    """A tensor of ones."""
    size = [8 if extent is None else extent for extent in shape]
    return built(lambda _ctx: torch.ones(size), size, shape=tuple(shape), **options)


FINITE = built(places, (8, 8), shape=(40, 24), dtype=torch.int64)


class TestGrid:
    @given(st.data())
    def test_it_is_the_list_of_all_patches_that_a_loop_finds(self, data: st.DataObject) -> None:
        shape = data.draw(st.lists(st.none() | st.integers(6, 12), min_size=1, max_size=3).map(tuple))
        window = TensorWindow((2,) * len(shape))
        t = built(lambda _ctx: torch.zeros([2] * len(shape)), window, shape=shape, edge="clip")
        low = [data.draw(st.integers(0 if extent else -20, 5)) for extent in shape]
        high = [data.draw(st.integers(a + 1, extent or 20)) for a, extent in zip(low, shape, strict=True)]
        size = tuple(data.draw(st.integers(1, b - a)) for a, b in zip(low, high, strict=True))
        stride = tuple(data.draw(st.integers(1, 9)) for _ in shape)
        dataset = GridDataset(t, size, stride, tuple(map(slice, low, high)))
        expected = []
        for corner in itertools.product(*map(range, low, high)):
            on_grid = all((at - a) % step == 0 for at, a, step in zip(corner, low, stride, strict=True))
            if on_grid and all(at + n <= b for at, n, b in zip(corner, size, high, strict=True)):
                expected.append(tuple(slice(at, at + n) for at, n in zip(corner, size, strict=True)))
        assert [dataset.region(i) for i in range(len(dataset))] == expected

    def test_more_patches_than_memory_holds_cost_nothing(self) -> None:
        dataset = GridDataset(PLANE, 1, region=sl[0 : 2**30, 0 : 2**30])
        assert len(dataset) == 2**60
        assert dataset.region(2**60 - 1) == sl[2**30 - 1 : 2**30, 2**30 - 1 : 2**30]


class TestPatches:
    @given(st.integers(-(2**70), 2**70), st.integers(0, 999), st.integers(1, 9), st.integers(1, 9))
    def test_a_patch_lies_in_the_region_wherever_that_is(self, seed: int, i: int, height: int, width: int) -> None:
        rows, columns = PatchDataset(PLANE, (height, width), sl[-4:5, 10:19], seed, length=1000).region(i)
        assert -4 <= rows.start < rows.stop == rows.start + height <= 5
        assert 10 <= columns.start < columns.stop == columns.start + width <= 19

    def test_every_place_is_taken_about_equally_often(self) -> None:
        dataset = PatchDataset(PLANE, 3, sl[0:6, 0:5], length=12_000)
        counts = np.zeros((4, 3))
        for i in range(len(dataset)):
            rows, columns = dataset.region(i)
            counts[rows.start, columns.start] += 1
        # 99.9 % of all seeds stay below: chi squared of 11 degrees of freedom.
        assert ((counts - 1000) ** 2 / 1000).sum() < 31.3


KINDS = pytest.mark.parametrize("kind", [GridDataset, PatchDataset])
Kind = type[GridDataset[Any]] | type[PatchDataset[Any]]


@KINDS
class TestBoth:
    def test_an_item_is_what_the_tensor_has_in_its_region(self, kind: Kind) -> None:
        dataset = kind(PLANE, (4, 5), region=sl[-9:20, 0:33])
        for i in (0, 1, len(dataset) - 1):
            assert torch.equal(dataset[i], PLANE[dataset.region(i)])
            assert dataset[i].shape == (4, 5)
            # It is nobody else's.
            dataset[i].zero_()
            assert torch.equal(dataset[i], PLANE[dataset.region(i)])
        assert len(kind(PLANE, 16, region=sl[0:100, 0:70])) == 6 * 4

    def test_finite_dimensions_stay_whole_unless_they_are_named(self, kind: Kind) -> None:
        assert kind(IMAGE, 8, region=sl[:, 0:16, 0:16])[0].shape == (3, 8, 8)
        assert kind(IMAGE, (8, 4), region=sl[:, 0:16, 0:16])[0].shape == (3, 8, 4)
        assert kind(IMAGE, (1, 8, 4), region=sl[:, 0:16, 0:16])[0].shape == (1, 8, 4)
        assert kind(IMAGE, 8, region=sl[1:, 0:16, 0:16])[0].shape == (2, 8, 8)

    def test_an_int_in_the_region_takes_a_dimension_away(self, kind: Kind) -> None:
        dataset = kind(IMAGE, 8, region=sl[-1, 0:16, 0:16])
        assert dataset[0].shape == (8, 8)
        assert dataset.region(0)[0] == 2
        assert torch.equal(dataset[0], IMAGE[dataset.region(0)])
        assert kind(PLANE, 8, region=sl[5, 0:16]).region(0)[0] == 5

    def test_a_finite_tensor_needs_no_region(self, kind: Kind) -> None:
        dataset = kind(FINITE, 8)
        assert len(dataset) == 5 * 3
        assert torch.equal(dataset[3], FINITE[dataset.region(3)])

    def test_the_message_shows_a_region_and_a_patch_size_that_work(self, kind: Kind) -> None:
        said = r"in each unbounded dimension \(1, 2\) .*, as in region=sl\[:, 0:1000, 0:1000\]$"
        with pytest.raises(ValidationError, match=said):
            kind(IMAGE, 64)
        assert kind(IMAGE, 64, region=sl[:, 0:1000, 0:1000])[0].shape == (3, 64, 64)
        with pytest.raises(ValidationError, match=r"or a smaller patch_size=\(3, 8, 8\)$"):
            kind(of_shape((3, 40, 24)), 8)
        assert kind(of_shape((3, 40, 24)), (3, 8, 8))[0].shape == (3, 8, 8)

    def test_indices_are_those_of_a_list(self, kind: Kind) -> None:
        dataset = kind(PLANE, 8, region=sl[0:16, 0:24])
        assert dataset.region(-1) == dataset.region(5)
        assert torch.equal(dataset[-6], dataset[0])
        assert torch.equal(dataset[np.int64(2)], dataset[torch.tensor(2)])
        for beyond in (6, -7):
            with pytest.raises(IndexError, match=rf"index {beyond} is out of range for a dataset of 6 patches"):
                dataset[beyond]
        with pytest.raises(TypeError, match="an index must be an int, or a list of ints, got slice"):
            dataset[0:2]
        for items in (list(dataset), list(_iterated(dataset))):
            assert [item.tolist() for item in items] == [dataset[i].tolist() for i in range(6)]

    def test_a_batch_is_read_in_one_plan(self, kind: Kind) -> None:
        f = Counted(places)
        dataset = kind(built(f, (8, 8), dtype=torch.int64, batch_size=1000), 8, region=sl[0:32, 0:32])
        items = dataset.__getitems__([3, 0, -1])
        assert len(f.batches) == 1
        assert [item.tolist() for item in items] == [dataset[i].tolist() for i in (3, 0, -1)]
        for indices in ((3, 0, -1), torch.tensor([3, 0, -1]), np.array([3, 0, -1])):
            assert torch.equal(dataset[indices], torch.stack(items))
        assert len(f.calls) == len(set(f.calls))


@KINDS
class TestSeveralTensors:
    def test_an_item_has_the_structure_of_what_was_given(self, kind: Kind) -> None:
        region = sl[..., 0:16, 0:24]
        named = kind({"image": IMAGE, "mask": PLANE}, 8, region=region)
        assert len(named) == 6
        for i in range(6):
            rows, columns = named.region(i)["mask"]
            assert named.region(i) == {"image": (slice(0, 3), rows, columns), "mask": (rows, columns)}
            assert torch.equal(named[i]["image"], IMAGE[:, rows, columns])
            assert torch.equal(named[i]["mask"], PLANE[rows, columns])
        for make in (list, tuple):
            item = kind(make([IMAGE, PLANE]), 8, region=region)[0]
            assert type(item) is make
            assert [part.shape for part in item] == [(3, 8, 8), (8, 8)]

    def test_tensors_that_are_not_cut_alike_are_refused(self, kind: Kind) -> None:
        with pytest.raises(ValidationError, match=r"same grid .*\[0:50 in patches of 8.*; 0:30 .*\[0:40 .*; 0:24 "):
            kind([PLANE, FINITE], 8, region=sl[0:50, 0:30])

    def test_channels_of_finite_tensors_stay_whole_where_they_are_named(self, kind: Kind) -> None:
        image, labels = of_shape((3, 40, 24), dims=("c", "y", "x")), of_shape((40, 24))
        item = kind({"image": image, "labels": labels}, 8, region=sl[..., 0:32, 0:24])[0]
        assert (item["image"].shape, item["labels"].shape) == ((3, 8, 8), (8, 8))
        assert kind(image, (8, 12))[0].shape == (3, 8, 12)
        assert kind(image, (2, 8, 8))[0].shape == (2, 8, 8)

    def test_finite_tensors_of_which_some_have_channels_are_cut_as_a_group(self, kind: Kind) -> None:
        pair: dict[str, Any] = {"image": of_shape((3, 40, 24)), "labels": of_shape((40, 24))}
        with pytest.raises(ValidationError, match=r"with channels, as in dims=\('c', 'y', 'x'\)$"):
            kind(pair, 1)
        item = kind(TensorGroup(pair, dims=(-2, -1)), 8)[0]
        assert (item["image"].shape, item["labels"].shape) == ((8, 8, 3), (8, 8))


COARSE = built(lambda ctx: places(ctx).float(), (8, 8))
WORLD = TensorGroup({"image": IMAGE, "look": {"coarse": COARSE}}, scale={"look": Fraction(1, 4)})


@pytest.mark.parametrize("kind", [GridDataset, PatchDataset])
class TestGroup:
    def test_a_dimension_that_is_not_cut_need_not_end_with_whole_pixels_of_all(self, kind: Kind) -> None:
        window = TensorWindow((1, 8))
        tensors = {n: built(lambda _ctx: torch.ones(1, 8), window, shape=(n, None)) for n in (9, 5)}
        group = TensorGroup({"all": tensors[9], "half": tensors[5]}, dims=(0, 1), scale={"half": 0.5})
        item = kind(group, 8, region=sl[:, 0:32])[0]
        assert (item["all"].shape, item["half"].shape) == ((9, 8), (5, 4))

    def test_an_item_is_what_the_group_has_in_its_region(self, kind: Kind) -> None:
        dataset = kind(WORLD, 8, region=sl[-16:40, 0:48])
        for index in range(len(dataset)):
            item, region = dataset[index], dataset.region(index)
            assert torch.equal(item["image"], IMAGE[(slice(None), *region)].permute(1, 2, 0))
            coarse = tuple(slice(part.start // 4, part.stop // 4) for part in region)
            assert torch.equal(item["look", "coarse"], COARSE[coarse])

    def test_a_loader_stacks_items(self, kind: Kind) -> None:
        dataset = kind(WORLD, 8, region=sl[0:32, 0:32])
        batch = next(iter(DataLoader(dataset, batch_size=4)))
        assert batch["image"].shape == (4, 8, 8, 3)
        assert batch["look", "coarse"].shape == (4, 2, 2)
        assert torch.equal(batch["image"][2], dataset[2]["image"])

    def test_what_tensors_share_runs_once_for_a_batch(self, kind: Kind) -> None:
        def tensor(f: Callable[..., Any], *reads: InfiniteTensor) -> InfiniteTensor:
            return built(f, (8, 8), *reads, store=MemoryTileStore(cache_size_bytes=1), dtype=torch.int64)

        f = Counted(places)
        shared = tensor(f)
        pair = {name: tensor(lambda _ctx, region: region + 1, shared) for name in ("a", "b")}
        dataset = kind(TensorGroup(pair), 8, region=sl[0:64, 0:64])
        dataset.__getitems__(list(range(8)))
        assert len(f.calls) == len(set(f.calls))


def doubled(item: torch.Tensor) -> torch.Tensor:
    return item * 2


class Shift:
    """A transform that holds something."""

    def __init__(self, by: int) -> None:
        self.by = by

    def __call__(self, item: torch.Tensor) -> torch.Tensor:
        return item + self.by

    def __repr__(self) -> str:
        return f"Shift({self.by})"


@KINDS
class TestTransform:
    @pytest.mark.parametrize("t", [PLANE, [IMAGE, PLANE], (IMAGE, PLANE), {"image": IMAGE, "mask": PLANE}, WORLD])
    def test_it_is_called_once_for_each_item_with_the_whole_patch(self, kind: Kind, t: Any) -> None:
        seen: list[Any] = []
        region = sl[0:16, 0:24] if t is WORLD or t is PLANE else sl[..., 0:16, 0:24]

        def numbered(item: Any) -> int:
            seen.append(item)
            return len(seen)

        dataset = kind(t, 8, region=region, transform=numbered)
        assert dataset.__getitems__([4, -1, 4]) == [1, 2, 3]
        for item, patch in zip(seen, kind(t, 8, region=region).__getitems__([4, -1, 4]), strict=True):
            assert type(item) is type(patch)
            assert bool((item == patch).all()) if t is WORLD else str(item) == str(patch)

    def test_its_error_comes_as_it_is_with_the_item_and_its_pixels(self, kind: Kind) -> None:
        def fails(item: torch.Tensor) -> torch.Tensor:
            raise KeyError(f"no label of {item.shape}")

        dataset = kind(PLANE, 8, region=sl[0:8, -8:0], transform=fails)
        with pytest.raises(KeyError, match="no label of") as failed:
            dataset.__getitems__([0])
        said = f"while transforming item 0 of a {kind.__name__}, which is [0:8, -8:0]"
        assert failed.value.__notes__ == [said]

    def test_its_index_error_does_not_end_an_iteration(self, kind: Kind) -> None:
        def fails(item: torch.Tensor) -> torch.Tensor:
            return item[1000]

        with pytest.raises(IndexError, match="1000"):
            list(kind(PLANE, 8, region=sl[0:8, 0:8], transform=fails))


BATCHED: dict[str, Any] = {"one": PLANE, "several": {"image": IMAGE, "mask": PLANE}, "list": [PLANE, IMAGE]}


@KINDS
@pytest.mark.parametrize("sources", BATCHED.values(), ids=BATCHED)
@pytest.mark.parametrize("transform", [None, lambda item: {"patch": item, "label": 1.5}], ids=["plain", "transformed"])
def test_a_batch_sampler_in_place_of_a_sampler_gives_the_same_batches(kind: Kind, sources: Any, transform: Any) -> None:
    dataset = kind(sources, 8, region=sl[..., 0:16, 0:24], transform=transform)
    batches = BatchSampler(SequentialSampler(dataset), 4, drop_last=False)
    found = list(DataLoader(dataset, batch_size=None, sampler=batches))
    for loader in (DataLoader(dataset, batch_size=4), DataLoader(dataset, batch_sampler=batches)):
        for one, other in zip(found, loader, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("dataset", "told"),
    [
        (
            GridDataset(IMAGE, 8, 4, region=sl[:, 0:16, -24:0], transform=doubled),
            "GridDataset(15 patches, transform=doubled, stride=(4, 4), each of\n    (3, 8, 8) in [0:3, 0:16, -24:0] of",
        ),
        (
            PatchDataset({"image": IMAGE, "mask": PLANE}, 8, sl[..., 0:16, 0:24], 5, length=100, transform=Shift(3)),
            "PatchDataset(100 patches, transform=Shift(3), seed=5, each of\n    'image': (3, 8, 8) in [0:3, 0:16, ",
        ),
        (GridDataset([IMAGE, PLANE], 8, region=sl[..., 0:16, 0:24]), f"\n    (8, 8) in [0:16, 0:24] of {PLANE!r})"),
        (
            GridDataset(WORLD, 8, region=sl[0:16, 0:24]),
            "\n    (8, 8) in [0:16, 0:24] of TensorGroup(shape=(None, None), tensors:\n        'image': ",
        ),
    ],
)
def test_a_repr_tells_what_is_read_and_how(dataset: GridDataset[Any] | PatchDataset[Any], told: str) -> None:
    assert told in repr(dataset)


def test_patches_of_a_group_lie_wherever_all_its_tensors_have_whole_pixels() -> None:
    dataset = PatchDataset(WORLD, 8, region=sl[-16:40, 0:48], length=2000)
    corners = {tuple(part.start for part in dataset.region(index)) for index in range(len(dataset))}
    assert corners == set(itertools.product(range(-16, 33, 4), range(0, 41, 4)))


def test_a_grid_over_a_group_is_made_of_whole_pixels() -> None:
    with pytest.raises(ValidationError, match=r"multiples of 4 .* and stride 6"):
        GridDataset(WORLD, 8, stride=6, region=sl[0:32, 0:32])
    assert len(GridDataset(WORLD, 8, stride=4, region=sl[0:32, 0:32])) == 49


def test_an_int_is_the_stride_of_every_dimension_that_patches_are_cut_along() -> None:
    dataset = GridDataset(IMAGE, (2, 8, 8), 1, sl[:, 0:9, 0:8])
    assert [dataset.region(i)[:2] for i in range(4)] == list(
        itertools.product([slice(0, 2), slice(1, 3)], [slice(0, 8), slice(1, 9)])
    )
    assert {PatchDataset(IMAGE, (2, 8, 8), sl[:, 0:8, 0:8], length=50).region(i)[0].start for i in range(50)} == {0, 1}


def _iterated(dataset: GridDataset[Any] | PatchDataset[Any]) -> Iterator[Any]:
    """As Python iterates over what has indices and no ``__iter__``."""
    for i in itertools.count():
        try:
            yield dataset[i]
        except IndexError:
            return


COPIES: dict[str, Callable[[Any], Any]] = {
    "itself": lambda dataset: dataset,
    "pickle": lambda dataset: pickle.loads(pickle.dumps(dataset)),  # noqa: S301  (our own)
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


@pytest.mark.parametrize(
    ("context", "copied"),
    [
        *(("fork", name) for name in COPIES),
        ("forkserver", "itself"),
        pytest.param("forkserver", "pickle", marks=pytest.mark.slow),
    ],
)
def test_workers_that_live_on_take_the_patches_of_an_epoch_that_is_set(
    tmp_path: Path, context: str, copied: str
) -> None:
    with ZarrTileStore(tmp_path / "t.zarr") as store:
        plane = built(places, (8, 8), store=store, name="plane", dtype=torch.int64)
        plane.fill(sl[0:64, 0:64], progress=False)
    stored = ZarrTileStore(tmp_path / "t.zarr", mode="r").open("plane")

    def dataset() -> PatchDataset[Any]:
        return PatchDataset(stored, 8, sl[0:64, 0:64], seed=3, length=12)

    shared = COPIES[copied](dataset())
    loader = DataLoader(shared, batch_size=3, num_workers=2, persistent_workers=True, multiprocessing_context=context)
    epochs = []
    for epoch in (0, 5, 0):
        shared.set_epoch(epoch)
        epochs.append(torch.cat(list(loader)))
        alone = dataset()
        alone.set_epoch(epoch)
        assert torch.equal(epochs[-1], torch.stack(list(alone)))
    assert torch.equal(epochs[0], torch.stack(list(dataset())))
    assert torch.equal(epochs[0], epochs[2])
    assert not torch.equal(epochs[0], epochs[1])


@pytest.mark.parametrize("copied", ["pickle", "copy", "deepcopy"])
def test_a_copy_has_an_epoch_of_its_own(copied: str) -> None:
    dataset = PatchDataset(PLANE, 4, PART)
    dataset.set_epoch(3)
    other = COPIES[copied](dataset)
    assert repr(other) == repr(dataset)
    dataset.set_epoch(4)
    other.set_epoch(5)
    assert ["epoch=4" in repr(dataset), "epoch=5" in repr(other)] == [True, True]


def train(dataset: PatchDataset[Any], *, epoch: int, turns: Any, results: Any) -> None:
    """Read epoch 0 and another one with a worker that lives on, in turn with others."""
    loader = DataLoader(dataset, num_workers=1, persistent_workers=True, multiprocessing_context="fork")
    list(loader)
    dataset.set_epoch(epoch)
    turns.wait()
    results.put((epoch, torch.cat(list(loader)).tolist()))


@pytest.mark.parametrize("context", ["fork", pytest.param("forkserver", marks=pytest.mark.slow)])
def test_trainings_that_were_given_one_dataset_have_their_own_epochs(context: str) -> None:
    processes: Any = get_context(context)
    turns, results = processes.Barrier(3), processes.Queue()
    dataset = PatchDataset(from_array(torch.arange(64.0).reshape(8, 8)), 2, seed=1, length=6)
    expected = {}
    for epoch in (1, 2):
        alone = copy.deepcopy(dataset)
        alone.set_epoch(epoch)
        expected[epoch] = torch.stack(list(alone)).tolist()
        more = {"epoch": epoch, "turns": turns, "results": results}
        processes.Process(target=train, args=(dataset,), kwargs=more).start()
    dataset.set_epoch(9)
    turns.wait(60)
    assert dict(results.get(timeout=60) for _ in expected) == expected


def test_many_datasets_need_few_files() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    datasets = [PatchDataset(PLANE, 4, PART) for _ in range(5000)]
    for at in (0, 4999):
        datasets[at].set_epoch(at)
    assert len(list(Path("/proc/self/fd").iterdir())) - before < 10
    assert [["epoch=4999" in repr(datasets[at]) for at in (0, 4998, 4999)]] == [[False, False, True]]


@pytest.mark.parametrize(("seed", "epoch"), [(3, 5), (7, 0)])
@pytest.mark.parametrize("region", [sl[0:64, 0:74], sl[-(2**40) : 2**40, 0:10_000]])
@pytest.mark.parametrize("length", [12, None])
def test_an_item_lies_where_documented(seed: int, epoch: int, region: tuple[slice, slice], length: int | None) -> None:
    dataset = PatchDataset(PLANE, 8, region, seed, length=length)
    dataset.set_epoch(epoch)
    heights, widths = (part.stop - part.start - 7 for part in region)
    for index in range(12):
        words = f"{seed} {index} {epoch}" if epoch else f"{seed} {index}"
        drawn = int.from_bytes(hashlib.blake2b(words.encode()).digest(), "big")
        row, column = divmod(heights * widths * drawn >> 512, widths)
        top, left = region[0].start + row, region[1].start + column
        assert dataset.region(index) == (slice(top, top + 8), slice(left, left + 8))
    assert f"seed={seed}" + (f", epoch={epoch}" if epoch else "") in repr(dataset)
    assert copy.deepcopy(dataset).region(7) == dataset.region(7)


def patches_of_epoch(epoch: Any) -> None:
    PatchDataset(PLANE, 4, PART).set_epoch(epoch)


PART = sl[0:9, 0:9]
NO_SIZES: list[Any] = [0, -1, (4,), (4, 4, 4), "4", 4.0, None, True, (4, "4")]
REFUSED: dict[str, tuple[Callable[[Any], object], list[Any]]] = {
    "patch_size must": (lambda value: GridDataset(PLANE, value, region=PART), NO_SIZES),
    "patch_size must .*": (lambda value: PatchDataset(PLANE, value, PART), NO_SIZES),
    "stride must": (lambda value: GridDataset(PLANE, 4, value, PART), [0, (1,), "1", 1.0]),
    "seed must be an int": (lambda value: PatchDataset(PLANE, 4, PART, seed=value), ["1", 1.0, True]),
    "length must be a positive int": (lambda n: PatchDataset(PLANE, 4, PART, length=n), [0, -1, "1", 1.0, True]),
    "epoch must be an int": (patches_of_epoch, [-1, 2**63, 0.5, "1", None, True]),
    "transform must be a function": (lambda value: GridDataset(PLANE, 4, region=PART, transform=value), ["flip"]),
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_an_argument_cannot_be_is_refused(said: str) -> None:
    make, wrong = REFUSED[said]
    for value in wrong:
        with pytest.raises(ValidationError, match=said):
            make(value)


UNFIT: list[tuple[Any, Any, Any, type[Exception], str]] = [
    (PLANE, (8, 12), sl[0:16, 0:11], ValidationError, r"no patch of \(8, 12\)"),
    (FINITE, 25, None, ValidationError, r"no patch of \(25, 25\)"),
    (PLANE, 4, sl[0:16:2, 0:16], ValidationError, "step"),
    (PLANE, 4, sl[0:16], RegionError, "unbounded"),
    (PLANE, 4, sl[0, 0], ValidationError, "no dimension"),
    (WORLD, 6, sl[0:32, 0:32], ValidationError, "multiples of 4"),
    (WORLD, 8, sl[0:32, 2:34], ValidationError, "multiples of 4"),
    *((t, 4, None, ValidationError, "t must") for t in list[Any]([torch.zeros(4, 4), [], {}, [PLANE, [PLANE]], None])),
]


@KINDS
@pytest.mark.parametrize(("t", "patch_size", "region", "error", "said"), UNFIT, ids=range(len(UNFIT)))
def test_what_cannot_be_cut_into_patches_is_refused(
    kind: Kind, t: Any, patch_size: Any, region: Any, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        kind(t, patch_size, region=region)


@KINDS
@pytest.mark.parametrize(
    ("index", "error"),
    [
        ([], IndexError),
        ([0, 99], IndexError),
        ([0, "1"], TypeError),
        ("1", TypeError),
        (torch.tensor([True]), TypeError),
    ],
)
def test_what_is_no_list_of_indices_is_refused(kind: Kind, index: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="index"):
        kind(PLANE, 8, region=sl[0:8, 0:24])[index]
