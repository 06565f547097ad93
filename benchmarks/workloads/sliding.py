"""A network slid over an image, in a process of its own: `python -m workloads.sliding SUBJECT CASE EXTENT FOLDER`.

SUBJECT is one of `SUBJECTS`, CASE one of `CASES`, EXTENT ``full`` or ``tiny``. The process first runs a tiny case of
the same kind, so that imports and first calls are not measured. It leaves what is stored in the end as ``labels.npy``
in FOLDER, and prints a line of JSON: ``seconds``, ``cpu_seconds``, ``memory`` (by how many bytes the most memory grew
that it ever held; None where the system does not tell), ``windows`` (how many different ones the network was given) and
``samples`` (how many in all, with those that filled up a batch).
"""

from __future__ import annotations

import gc
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zarr
from torch import nn

BATCH = 4
OVERLAP = 0.5
SIGMA_SCALE = 0.125

Corner = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """A network and the image that it is slid over. Windows overlap by half, and fill the image exactly.

    Attributes
    ----------
    what : str
        The network, for the table.
    network : callable
        ``network(channels, classes)`` makes it.
    channels, classes : int
        Of the image, and of what the network returns.
    extents : tuple of int
        Pixels of the image.
    size : int
        Pixels of a window, along each side.
    """

    what: str
    network: Callable[[int, int], nn.Module]
    channels: int
    classes: int
    extents: tuple[int, ...]
    size: int

    @property
    def title(self) -> str:
        """For the table."""
        extents, size = ("x".join(map(str, each)) for each in (self.extents, [self.size] * len(self.extents)))
        return f"{self.what}, {extents}, windows of {size}"

    @property
    def tiny(self) -> Case:
        """The same with few small windows."""
        return replace(self, extents=(40,) * len(self.extents), size=16)

    @property
    def step(self) -> int:
        """Pixels from one window to the next."""
        return int(self.size * (1 - OVERLAP))

    @cached_property
    def corners(self) -> list[Corner]:
        """Where the windows begin, row by row."""
        assert all((extent - self.size) % self.step == 0 for extent in self.extents)
        return list(itertools.product(*[range(0, extent - self.size + 1, self.step) for extent in self.extents]))

    def window(self, corner: Sequence[int]) -> tuple[slice, ...]:
        """The pixels of a window, with all channels."""
        return (slice(None), *[slice(begin, begin + self.size) for begin in corner])


def _scores(channels: int, classes: int) -> nn.Module:
    """A network that costs little, so that the sliding is what is measured."""
    return nn.Conv2d(channels, classes, 3, padding=1)


class _UNet(nn.Module):
    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        widths = (8, 16, 32)
        self.down = nn.ModuleList(map(self._block, (channels, *widths), widths))
        self.enlarge = nn.ModuleList([nn.ConvTranspose2d(2 * n, n, 2, stride=2) for n in widths[-2::-1]])
        self.up = nn.ModuleList([self._block(2 * n, n) for n in widths[-2::-1]])
        self.head = nn.Conv2d(widths[0], classes, 1)

    @staticmethod
    def _block(given: int, returned: int) -> nn.Module:
        layers = [nn.Conv2d(given, returned, 3, padding=1), nn.ReLU(), nn.Conv2d(returned, returned, 3, padding=1)]
        return nn.Sequential(*layers, nn.ReLU())

    def forward(self, batch: torch.Tensor) -> Any:
        levels = [self.down[0](batch)]
        for block in itertools.islice(self.down, 1, None):
            levels.append(block(nn.functional.max_pool2d(levels[-1], 2)))
        found = levels.pop()
        for enlarge, block in zip(self.enlarge, self.up, strict=True):
            found = block(torch.cat([levels.pop(), enlarge(found)], 1))
        return self.head(found)


def _volume(channels: int, classes: int) -> nn.Module:
    return nn.Sequential(nn.Conv3d(channels, 8, 3, padding=1), nn.ReLU(), nn.Conv3d(8, classes, 3, padding=1))


CASES = {
    "classes-1536": Case("100 classes", _scores, 3, 100, (1536, 1536), 256),
    "wide-2": Case("2 classes", _scores, 3, 2, (2048, 4096), 256),
    "wide-10": Case("10 classes", _scores, 3, 10, (2048, 4096), 256),
    "wide-100": Case("100 classes", _scores, 3, 100, (2048, 4096), 256),
    "classes-4096": Case("100 classes", _scores, 3, 100, (4096, 4096), 256),
    "unet": Case("U-Net, 3 classes", _UNet, 3, 3, (1536, 1536), 256),
    "volume": Case("3-D, 3 classes", _volume, 1, 3, (256, 256, 256), 64),
}


class Counting(nn.Module):
    """A network that counts the windows it is given, which differ in their first pixel."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.samples = 0
        self.windows: set[float] = set()

    def forward(self, batch: torch.Tensor) -> Any:
        self.samples += len(batch)
        self.windows.update(batch.flatten(1)[:, 0].tolist())
        return self.net(batch)


class Job:
    """What a subject is given: the same network and the same image in every process.

    Parameters
    ----------
    case : Case
        What is slid over what.
    folder : path
        Where the labels are stored.
    """

    def __init__(self, case: Case, folder: Path) -> None:
        self.case = case
        self.folder = folder
        torch.manual_seed(0)
        self.net = Counting(case.network(case.channels, case.classes)).requires_grad_(requires_grad=False).eval()
        for weights in self.net.parameters():
            # As torch has it, the U-Net gives one label everywhere.
            nn.init.kaiming_normal_(weights) if weights.ndim > 1 else nn.init.zeros_(weights)
        self.image = torch.randn(case.channels, *case.extents)
        for number, corner in enumerate(case.corners):
            self.image[(0, *corner)] = number / len(case.corners)

    def batch(self, corners: Sequence[Corner]) -> torch.Tensor:
        """Some windows of the image."""
        return torch.stack([self.image[self.case.window(corner)] for corner in corners])

    def array(self) -> Any:
        """A Zarr array for the labels."""
        step, ndim = self.case.step, len(self.case.extents)
        chunks = (step, *[4 * step] * (ndim - 1))
        return zarr.create_array(self.folder / "labels.zarr", shape=self.case.extents, chunks=chunks, dtype="uint8")

    @cached_property
    def weights(self) -> torch.Tensor:
        """The Gaussian weights of a window, as MONAI has them."""
        places = torch.arange(self.case.size) - (self.case.size - 1) / 2
        along = torch.exp(-(places**2) / (2 * (SIGMA_SCALE * self.case.size) ** 2))
        weights = along
        for _ in self.case.extents[1:]:
            weights = weights[..., None] * along
        return weights.clamp(min=max(weights.min().item(), 1e-3))


def ours(job: Job) -> Callable[[], Any]:
    """`predict`."""
    library = import_module("infinite_tensor")
    path = job.folder / "store.zarr"
    with library.ZarrTileStore(path) as store:
        library.predict(
            job.net,
            job.image,
            store,
            window=(job.case.size,) * len(job.case.extents),
            overlap=OVERLAP,
            sigma_scale=SIGMA_SCALE,
            reduce="argmax",
            batch_size=BATCH,
            workers=1,
            progress=False,
        )

    def stored() -> Any:
        with library.ZarrTileStore(path, mode="r") as again:
            return again.open("prediction")[...]

    return stored


@torch.inference_mode()
def monai(job: Job) -> Callable[[], Any]:
    """MONAI's sliding windows, their argmax, and one write."""
    slide = import_module("monai.inferers").sliding_window_inference
    size = (job.case.size,) * len(job.case.extents)
    options = {"overlap": OVERLAP, "mode": "gaussian", "sigma_scale": SIGMA_SCALE}
    scores = slide(job.image[None], size, BATCH, job.net, **options)
    array = job.array()
    array[...] = scores[0].argmax(0).to(torch.uint8).numpy()
    return lambda: array[...]


@torch.inference_mode()
def loop(job: Job) -> Callable[[], Any]:
    """The plain loop: a strip as high as a window adds up scores, and moves on as its first rows are complete."""
    case, array = job.case, job.array()
    strip = torch.zeros(case.classes, case.size, *case.extents[1:])
    top = 0

    def store(rows: int) -> None:
        # All scores of a pixel have one divisor, which does not matter to the largest.
        array[top : top + rows] = strip[:, :rows].argmax(0).to(torch.uint8).numpy()

    for corners in _batched(case.corners, BATCH):
        for (row, *rest), scores in zip(corners, job.net(job.batch(corners)), strict=True):
            if row > top:
                store(case.step)
                # Half a window each, which do not overlap.
                strip[:, : case.step] = strip[:, case.step :]
                strip[:, case.step :] = 0
                top = row
            strip[case.window((0, *rest))].addcmul_(scores, job.weights)
    store(case.size)
    return lambda: array[...]


@torch.inference_mode()
def net(job: Job) -> None:
    """The network alone, with as many batches."""
    batch = job.batch(job.case.corners[:BATCH])
    for _ in _batched(job.case.corners, BATCH):
        job.net(batch)


SUBJECTS = {each.__name__: each for each in (ours, monai, loop, net)}


@torch.inference_mode()
def lead(job: Job, pixel: Corner) -> float:
    """By how much the best of the blended scores of a pixel exceeds the second best."""
    case = job.case
    over = [
        corner
        for corner in case.corners
        if all(begin <= place < begin + case.size for begin, place in zip(corner, pixel, strict=True))
    ]
    summed, divisor = torch.zeros(case.classes, dtype=torch.float64), 0.0
    for corner in over:
        place = tuple([at - begin for at, begin in zip(pixel, corner, strict=True)])
        weight = job.weights[place].item()
        summed += weight * job.net(job.batch([corner]))[(0, slice(None), *place)].double()
        divisor += weight
    best = (summed / divisor).topk(2).values
    return (best[0] - best[1]).item()


def measured(subject: str, case: Case, folder: Path) -> dict[str, Any]:
    """Run it once; see the docstring of this module."""
    folder.mkdir(parents=True)
    job = Job(case, folder)
    gc.collect()
    held, begun, begun_cpu = _most_memory(), time.perf_counter(), time.process_time()
    stored = SUBJECTS[subject](job)
    seconds, cpu_seconds, most = time.perf_counter() - begun, time.process_time() - begun_cpu, _most_memory()
    if stored is not None:
        np.save(folder / "labels.npy", np.asarray(stored()))
    return {
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "memory": None if held is None or most is None else most - held,
        "windows": len(job.net.windows),
        "samples": job.net.samples,
    }


def main() -> None:
    """Run what the arguments say."""
    subject, name, extent, folder = sys.argv[1:]
    torch.set_num_threads(1)
    case = CASES[name]
    measured(subject, case.tiny, Path(folder) / "tiny")
    found = measured(subject, case.tiny if extent == "tiny" else case, Path(folder) / "full")
    sys.stdout.write(json.dumps(found) + "\n")


def _batched(corners: Sequence[Corner], count: int) -> Iterator[Sequence[Corner]]:
    for begin in range(0, len(corners), count):
        yield corners[begin : begin + count]


def _most_memory() -> int | None:
    # Not `resource`: what it says of a process begins with what the parent held.
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    lines = dict(line.split(":", 1) for line in status.read_text(encoding="ascii", errors="replace").splitlines())
    return int(lines["VmHWM"].split()[0]) * 1024 if "VmHWM" in lines else None


if __name__ == "__main__":
    main()
