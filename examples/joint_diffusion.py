"""Joint diffusion: windows of an endless image are denoised together, on the condition of a small drawing.

``python examples/joint_diffusion.py`` writes joint_diffusion.png: the drawing, and the image after 1, 2 and 6 steps.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import matplotlib.pyplot as plt
import torch
from torch.nn.functional import conv2d, interpolate

from infinite_tensor import InfiniteTensor, from_array, map_windows, noise, placed

DIMS, AREA = ("c", "y", "x"), (slice(None), slice(0, 256), slice(0, 384))
LINE = torch.arange(-5.0, 6) ** 2
NEAR, FAR = (torch.exp(-(LINE + LINE[:, None]) / n) for n in (4, 12))
RIPPLES = (NEAR / NEAR.sum() - FAR / FAR.sum())[None, None]


def step(level: float, latents: torch.Tensor, drawing: torch.Tensor) -> torch.Tensor:
    """Denoise a batch of windows. This stands for a network: it finds ripples, brighter ones where the drawing is."""
    clean = 12 * conv2d(latents, RIPPLES, padding="same") + interpolate(drawing, scale_factor=8, mode="bilinear")
    return level * latents + (1 - level) * clean.tanh()


def denoised(latents: InfiniteTensor, drawing: InfiniteTensor, levels: Sequence[float]) -> Iterator[InfiniteTensor]:
    """Return the latents after each step: all windows agree before the next step begins."""
    for level in levels:
        step_in_windows = partial(map_windows, partial(step, level), window=64, overlap=0.5, scale=(1, 8), batch_size=8)
        latents = step_in_windows(latents, drawing, blend="hann")
        yield latents


y, x = torch.meshgrid(torch.linspace(-1.2, 1.2, 32), torch.linspace(-1.8, 1.8, 48), indexing="ij")
RING = 1 - 3 * ((x**2 + y**2).sqrt() - 0.75).abs()[None]
drawing = placed(from_array(RING.clamp(min=-1), dims=DIMS), (0, 0), fill=-1)
steps = [*denoised(noise((1, None, None), seed=5, kind="normal", dims=DIMS), drawing, (0.7, 0.5, 0.4, 0.3, 0.2, 0.1))]

if __name__ == "__main__":
    parts = [interpolate(drawing[:, 0:32, 0:48][None], scale_factor=8)[0], *[steps[n][AREA] for n in (0, 1, 5)]]
    rows = [torch.cat(parts[:2], 2), torch.cat(parts[2:], 2)]
    plt.imsave("joint_diffusion.png", torch.cat(rows, 1)[0].numpy(), cmap="magma", vmin=-1, vmax=1)
