"""The example that collects embeddings, as a user runs it: again and again, and killed in between."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
import torch

from infinite_tensor import TensorBlob
from tests.docs.test_examples import EXAMPLES, succeeds

SCRIPT = EXAMPLES / "embeddings.py"


def nearest(printed: str) -> list[str]:
    return re.findall(r"^  \d\.\d\d  (\S+)$", printed, re.MULTILINE)


def test_each_run_goes_on_where_the_one_before_it_ended(tmp_path: Path) -> None:
    first = succeeds(SCRIPT, "--most", 130, "--query", "parse command line arguments", cwd=tmp_path)
    assert first.startswith("0 entries were there, 130 are new\n")
    assert nearest(first)[0] == "argparse"
    # As a run leaves it that is killed between the two flushes.
    with TensorBlob.open(tmp_path / "embeddings" / "names", "a") as names:
        names.truncate(100)
    second = succeeds(SCRIPT, "--most", 50, "--count", 3, "--query", "parse command line arguments", cwd=tmp_path)
    assert second.startswith("100 entries were there, 50 are new\n")
    assert nearest(second) == nearest(first)[:3]


def test_the_search_finds_what_a_search_in_memory_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    example = importlib.import_module("embeddings")
    example.collect(tmp_path, 300)
    wanted = example.embedded("decode base64")
    scores = TensorBlob.open(tmp_path / "vectors").read().float() @ wanted
    names = TensorBlob.open(tmp_path / "names")
    expected = [bytes(names[at].tolist()).decode().strip() for at in scores.topk(4).indices.tolist()]
    found = example.search(tmp_path, "decode base64", 4)
    assert [name for _, name in found] == expected
    assert torch.allclose(torch.tensor([cosine for cosine, _ in found]), scores.topk(4).values, atol=1e-4)
