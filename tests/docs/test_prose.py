"""What pages, examples and messages tell users to do: which packages to install, and how to draw random numbers."""

from __future__ import annotations

import codeop
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SOURCES = sorted(
    path for folder in ("infinite_tensor", "stores", "examples", "tests") for path in (ROOT / folder).rglob("*.py")
)
SHOWN = [*PAGES, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "examples").glob("*.py"))]
"""What users read and copy from."""

# A package of another library has this project's name in the package registry.
_SOMEBODY_ELSES = re.compile(r"infinite[-_]tensor\[\w|\binstall\b[^\n]*?[ \"']infinite[-_]tensor\b|upgrade infinite")


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


def test_blocks_can_be_pasted_at_the_prompt_of_python() -> None:
    """That of Python 3.11 takes a line after an indented one as a part of it, unless there is a blank line between."""
    torn = {f"{page.name}: {line}" for page in PAGES for line in torn_lines(page.read_text(encoding="utf-8"))}
    assert torn == set()


def torn_lines(page: str) -> list[str]:
    """The lines of the blocks of a page that a prompt refuses."""
    found = []
    for block in re.findall(r"```python\n((?! *--8<--).*?)```", page, re.DOTALL):
        # Blank lines within a function or class are left to the reader: notebooks and files take them.
        typed: list[str] = []
        compiled = codeop.CommandCompiler()
        for line in (*re.sub(r"\n+(?=\n[ )\]}])", "", block).split("\n"), ""):
            typed.append(line)
            try:
                if compiled("\n".join(typed), symbol="single") is not None:
                    typed = []
            except SyntaxError:
                found.append(line)
                break
    return found
