"""What pages, examples and messages tell users to do: which packages to install, and how to draw random numbers."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SOURCES = sorted(
    path for folder in ("infinite_tensor", "stores", "examples", "tests") for path in (ROOT / folder).rglob("*.py")
)
SHOWN = [*PAGES, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "examples").glob("*.py"))]
"""What users read and copy from."""

# A package of another library has this project's name in the package registry.
_SOMEBODY_ELSES = re.compile(r"infinite[-_]tensor\[\w|\binstall\b[^\n]*?[ \"']infinite[-_]tensor\b|upgrade infinite")
_RECIPE = re.compile(r"(?P<np>np|numpy)\.array\(\((?P<entropy>[^()]+)\), (?P=np)\.int64\)\.view\((?P=np)\.uint32\)")
_LIMIT = 2**51


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_nothing_tells_anybody_to_install_the_package_of_another_library() -> None:
    paths = {*SHOWN, *SOURCES} - {Path(__file__)}
    found = {name(path): _SOMEBODY_ELSES.findall(path.read_text(encoding="utf-8")) for path in paths}
    assert {where: told for where, told in found.items() if told} == {}


def test_the_pages_are_in_plain_english() -> None:
    odd = re.compile(
        r"a torch tensor of which|if you say nothing|if you do not say|made anew|what holds|held by|go(?:es)? on with|"
        r"in turn\b|as long as it lasts|whoever|lets? go of|your word for",
        re.IGNORECASE,
    )
    found = {page.name: odd.findall(page.read_text(encoding="utf-8")) for page in PAGES}
    assert {page: phrases for page, phrases in found.items() if phrases} == {}


def test_git_ignores_what_the_examples_and_the_quick_start_write() -> None:
    ignored = {line.strip("/") for line in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()}
    written = set(re.findall(r'TileStore\("(\w+\.\w+)"', (ROOT / "README.md").read_text(encoding="utf-8")))
    for script in (ROOT / "examples").glob("*.py"):
        text = script.read_text(encoding="utf-8")
        written.update(re.findall(r'default=(?:Path\()?"(\w+(?:\.\w+)?)"', text))
        for stem in re.findall(r'= arguments\(__doc__, "(\w+)"', text):
            written |= {f"{stem}.zarr", f"{stem}.png"}
    assert {"blur.zarr", "embeddings", "terrain.png", "train.zarr"} <= written <= ignored


def recipes() -> list[str]:
    texts = [path.read_text(encoding="utf-8") for path in SHOWN]
    return [found["entropy"] for text in texts for found in _RECIPE.finditer(text)]


def test_the_readme_and_the_pages_show_one_recipe_for_noise() -> None:
    shown = [page.name for page in PAGES if _RECIPE.search(page.read_text(encoding="utf-8"))]
    assert shown == ["README.md", "index.md", "modules.md", "scaling.md", "storage-layout.md"]
    assert {entropy.split(",")[0].lower().removeprefix("self.") for entropy in recipes()} == {"seed"}


@pytest.mark.parametrize("path", SHOWN, ids=name)
def test_noise_is_drawn_by_the_recipe_and_by_nothing_else(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    # It keeps 32 bits of a seed on the CPU.
    assert not re.search(r"Generator\([^)]*\)\.manual_seed", text)
    assert text.count("default_rng(") == len(re.findall(rf"default_rng\({_RECIPE.pattern}\)", text))


def state(entropy: str, seed: int, row: int, column: int) -> tuple[int, int]:
    """The state of the generator that the recipe of a page makes."""
    names = {"SEED": seed, "row": row, "column": column, "numpy": np}
    source = f"numpy.random.default_rng(numpy.array(({entropy}), numpy.int64).view(numpy.uint32))"
    made = eval(source, names).bit_generator.state["state"]  # noqa: S307  (what the page shows is what runs)
    return made["state"], made["inc"]


TRIPLES = [
    *itertools.product((0, 1, 3), range(-12, 12), range(-12, 12)),
    # What repeats where a seed keeps 32 bits, where coordinates are added up, and where words of any length are joined.
    *((0, 0, 2**32 * n) for n in range(-4, 5) if n),
    *((0, row, -1_000_003 * row) for row in range(1, 9)),
    *((2**32 * n, 0, 0) for n in (1, 2, 3)),
    *itertools.product((0, -1, 2**63 - 1, -(2**63)), (-_LIMIT, _LIMIT), (-_LIMIT, _LIMIT)),
]


@pytest.mark.parametrize("entropy", sorted({entropy for entropy in recipes() if "column" in entropy}))
def test_every_seed_and_place_has_a_generator_of_its_own(entropy: str) -> None:
    states = {state(entropy, *triple) for triple in TRIPLES}
    assert len(states) == len(set(TRIPLES)) == len(TRIPLES)


def test_the_generator_of_a_place_is_the_same_everywhere() -> None:
    rng = np.random.default_rng(np.array((0, -1, 2**40), np.int64).view(np.uint32))
    assert rng.random(3, np.float32).tolist() == [0.9842863082885742, 0.4620261788368225, 0.4845370650291443]
