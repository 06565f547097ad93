"""`import infinite_tensor` is quick: what it offers is imported when it is first used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import infinite_tensor
import infinite_tensor.tilestore
import infinite_tensor.tilestore.persistent
import infinite_tensor_stores

PACKAGES = [
    infinite_tensor,
    infinite_tensor.tilestore,
    infinite_tensor.tilestore.persistent,
    infinite_tensor_stores,
]


def test_importing_the_library_imports_nothing_that_takes_long() -> None:
    code = """
import sys
import infinite_tensor, infinite_tensor.tilestore, infinite_tensor_stores
print([name for name in ("torch", "numpy", "zarr", "h5py", "fsspec", "importlib.metadata") if name in sys.modules])
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_every_public_name_is_found_and_listed(package: object) -> None:
    names = package.__all__  # type: ignore[attr-defined]
    assert [name for name in names if not hasattr(package, name)] == []
    assert [name for name in names if name not in dir(package)] == []


WITHOUT_EXTRAS = """
import sys
sys.modules |= dict.fromkeys(["matplotlib", "PIL", "tensordict"])
import infinite_tensor
assert infinite_tensor.tilestore.inventory.__name__ == "infinite_tensor.tilestore.inventory"  # an attribute at once
import torch
from infinite_tensor import TensorGroup, from_array
t = from_array(torch.ones(4))
t[...]
assert "float32" in t._repr_html_()
group = TensorGroup({"a": t}, dims=(0,))
assert group.keys() == ["a"] and group["a"][0:2].tolist() == [1, 1] and group.select("a").keys() == ["a"]
for use in (t.show, lambda: group[0:4]):
    try:
        use()
    except ImportError as error:
        print(error)
"""


def test_what_an_extra_brings_is_needed_where_it_is_used_and_not_before() -> None:
    ran = subprocess.run([sys.executable, "-c", WITHOUT_EXTRAS], capture_output=True, text=True, check=True)
    shown, read = ran.stdout.splitlines()
    assert shown == "t.show needs the package matplotlib: pip install matplotlib"
    assert "pip install tensordict" in read


def test_a_name_that_there_is_not_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'infinite_tensor'"):
        infinite_tensor.nothing  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(ImportError, match="'nothing'"):
        exec("from infinite_tensor import nothing")  # noqa: S102  (mypy would refuse it)
    for name in ("nothing.more", "tilestore.memory", "", "."):
        assert not hasattr(infinite_tensor, name)


@pytest.mark.slow
def test_without_h5py_other_stores_open(tmp_path: Path) -> None:
    code = """
import sys
sys.modules["h5py"] = None
from infinite_tensor import open_store
print(open_store(sys.argv[1] + "/s.zarr").closed)
try:
    open_store(sys.argv[1] + "/s.h5")
except ImportError as error:
    print(error)
"""
    found = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert found.stdout == "False\nHDF5TileStore needs the package h5py: pip install h5py\n"
