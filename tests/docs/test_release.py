"""What is told about a release in several places is told alike."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_one_version_and_one_date_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    heading = re.search(r"^## (\S+) \((.+)\)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert heading is not None
    assert f"\nversion: {project['version']}\n" in citation
    assert heading.groups() == (project["version"], re.findall(r"^date-released: (.+)$", citation, re.MULTILINE)[0])


def test_the_stores_of_the_release_are_kept() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (ROOT / "tests" / "stores" / "frozen" / f"{project['version']}.zip").exists()
