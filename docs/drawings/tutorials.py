"""Takes the pictures that tutorials write into `docs/images`, by running their blocks.

``python docs/drawings/tutorials.py`` takes those of all, ``python docs/drawings/tutorials.py terrain`` those of one;
``--folder`` says where to.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
TUTORIALS = ("terrain", "large-image", "training", "diffusion")


def take(page: Path, images: Path) -> None:
    """Run a page in a folder of its own, and keep the pictures that it writes and shows."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"(?<!-->\n)^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "page.py").write_text("\n".join(blocks), encoding="utf-8")
        variables = os.environ | {"MPLBACKEND": "Agg"}
        subprocess.run([sys.executable, "page.py"], cwd=folder, env=variables, check=True)
        for shown in re.findall(r"\]\(images/([\w-]+\.\w+)\)", text):
            if (folder / shown).exists():
                shutil.copy(folder / shown, images)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="*", metavar="page", default=TUTORIALS)
    parser.add_argument("--folder", type=Path, default=ROOT / "docs" / "images")
    arguments = parser.parse_args()
    for page in arguments.pages:
        take(ROOT / "docs" / f"{page}.md", arguments.folder)
