"""plan, fill and predict."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import zarr
from PIL import Image

import infinite_tensor
from infinite_tensor import InfiniteTensor, TensorWindow, ZarrTileStore, predict
from tests.support.command_line import CommandLine

WORLD = """
import torch
from infinite_tensor import InfiniteTensor, Mask, TensorGroup, TensorWindow, ZarrTileStore

store = ZarrTileStore({store!r}, tile_size=4)

def height(ctx):
    return torch.ones(4, 4)

def broken(ctx):
    raise RuntimeError("no such planet")

def left(ctx):
    raise SystemExit(0)

def told(ctx):
    print("computing")
    return torch.ones(4, 4)

def made(f, shape=(None, None), name=None):
    return InfiniteTensor(shape, f, TensorWindow((4, 4)), tile_store=store, tensor_id=name or f.__name__)

small, height, broken, left, told = made(height, (8, 8), "small"), made(height), made(broken), made(left), made(told)
both = TensorGroup({{"height": height}})
corner = Mask(torch.eye(2), scale=4)
"""
MODEL = """
import torch

torch.manual_seed(0)
net = torch.nn.Conv2d(3, 5, 3, padding=1)
flat = torch.nn.Conv2d(1, 2, 3, padding=1)

def half(batch):
    return batch / 2

def fail(batch):
    raise RuntimeError("no such planet")

def several(batch):
    return {'labels': net(batch), 'sure': net(batch), 'rest': net(batch)}

def largest(values):
    return values.amax(0)
"""


@pytest.fixture
def world(tmp_path: Path) -> Path:
    path = tmp_path / "cli_world.py"
    path.write_text(WORLD.format(store=str(tmp_path / "w.zarr")))
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "cli_model.py"
    path.write_text(MODEL)
    return path


def tiles(store: Path, tensor_id: str) -> int:
    with ZarrTileStore(store, mode="r") as opened:
        return opened.tensor_info(tensor_id).tiles_complete


def test_fill_stores_a_region_once(cli: CommandLine, world: Path, tmp_path: Path) -> None:
    found = cli("fill", "--module", f"{world}:height", "--region", "-8:8,0:8", "--json")
    assert found.code == 0
    assert (found.json["windows"], found.json["tiles"]) == (8, 8)
    assert tiles(tmp_path / "w.zarr", "height") == 8
    again = cli("fill", "--module", f"{world}:height", "--region", "-8:8,0:8")
    assert again.out.splitlines()[2].split() == ["height", "0", "0", "0", "B"]


def test_fill_without_a_region_is_for_all_of_a_finite_tensor(cli: CommandLine, world: Path) -> None:
    assert cli("fill", "--module", f"{world}:small", "--json").json["tiles"] == 4
    found = cli("fill", "--module", f"{world}:height")
    assert (found.code, "unbounded along dim_0, dim_1" in found.err) == (2, True)
    assert cli("fill", "--module", f"{world}:both", "--region", "0:8,0:8", "--json").json["tiles"] == 4
    for wrong in ("both", "store"):
        assert cli("fill", "--module", f"{world}:{wrong}").code == 2


def test_fill_takes_what_a_mask_wants(cli: CommandLine, world: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "mask.npy", np.eye(2, dtype=bool))
    options = ["--region", "0:8,0:8", "--json"]
    where = ["--where", tmp_path / "mask.npy", "--where-scale", "4"]
    found = cli("fill", "--module", f"{world}:height", *options, *where).json
    assert (found["tiles"], found["skipped"]) == (2, 2)
    Image.fromarray(np.array([[0, 255], [0, 0]], np.uint8)).save(tmp_path / "mask.png")
    where = ["--where", tmp_path / "mask.png", "--where-scale", "4"]
    assert cli("fill", "--module", f"{world}:height", *options, *where).json["tiles"] == 1
    where = ["--where", f"{world}:corner"]
    assert cli("fill", "--module", f"{world}:height", *options, *where).json["tiles"] == 0


def test_fill_takes_shards_workers_and_a_limit(cli: CommandLine, world: Path) -> None:
    options = ["--region", "0:16,0:16", "--workers", "2", "--max-memory", "400MB", "--json"]
    told = [cli("fill", "--module", f"{world}:height", "--shard", f"{rank}/2", *options) for rank in (0, 1)]
    counts = [each.json["tiles"] for each in told]
    assert sum(counts) == 16
    assert 0 not in counts
    found = cli("fill", "--module", f"{world}:height", "--shard", "2/2", *options)
    assert (found.code, "shard must be (rank, world_size)" in found.err) == (1, True)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("broken", ["RuntimeError: no such planet", "window (0, 0) of tensor 'broken'"]),
        ("left", ["SystemExit: 0"]),
    ],
)
def test_code_of_the_user_that_fails_is_shown_where_it_failed(
    name: str, told: list[str], cli: CommandLine, world: Path
) -> None:
    found = cli("fill", "--module", f"{world}:{name}", "--region", "0:4,0:4")
    assert found.code == 4
    assert all(each in found.err for each in [*told, f'"{world}", line ', f", in {name}"]), found.err
    assert "infinite_tensor/engine" not in found.err


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("import no_such_package", "No module named 'no_such_package'"),
        ("int('many')", "ValueError: invalid literal"),
        ("raise SystemExit(0)", "SystemExit: 0"),
        ("raise BrokenPipeError('theirs')", "BrokenPipeError: theirs"),
        ("planets = [", "SyntaxError: "),
    ],
)
def test_a_file_that_does_not_run_is_code_that_has_failed(
    line: str, told: str, cli: CommandLine, tmp_path: Path
) -> None:
    path = tmp_path / "cli_fails.py"
    path.write_text(line)
    found = cli("fill", "--module", f"{path}:planet")
    assert (found.code, told in found.err) == (4, True), found.err
    assert f'File "{path}", line 1' in found.err
    assert str(Path(infinite_tensor.__file__).parent) not in found.err


def test_what_code_of_the_user_prints_does_not_get_into_json(cli: CommandLine, world: Path) -> None:
    world.write_text(world.read_text() + "print('loading')\n")
    found = cli("fill", "--module", f"{world}:told", "--region", "0:4,0:4", "--json")
    assert (found.code, found.json["windows"]) == (0, 1)
    assert found.err == "loading\ncomputing\n"


def test_plan_computes_nothing(cli: CommandLine, store: Path) -> None:
    found = cli("plan", store, "twice", "--region", ":,0:8", "--json")
    assert found.code == 0
    assert (found.json["windows"], found.json["exact"]) == (2, True)
    assert [each["tensor_id"] for each in found.json["tensors"]] == ["rows", "twice"]
    lines = cli("plan", store, "twice", "--region", ":,0:8").out.splitlines()
    assert lines[3].split()[:5] == ["twice", "4", "2", "2", "2"]
    assert tiles(store, "twice") == 1


def test_predict_stores_what_the_library_predicts(cli: CommandLine, model: Path, tmp_path: Path) -> None:
    image, target = np.random.default_rng(0).random((3, 40, 50), dtype=np.float32), tmp_path / "p.zarr"
    np.save(tmp_path / "image.npy", image)
    options = ["--window", "16", "--reduce", "argmax", "--dims", "c,y,x", "--padding", "constant:0"]
    found = cli("predict", "--module", f"{model}:net", tmp_path / "image.npy", target, *options, "--json")
    assert found.code == 0
    assert found.json["tensors"] == [{"tensor_id": "prediction", "shape": [40, 50], "dtype": "uint8"}]
    torch.manual_seed(0)
    net = torch.nn.Conv2d(3, 5, 3, padding=1)
    expected = predict(net, image, window=16, reduce="argmax", dims=("c", "y", "x"), padding=("constant", 0))
    with ZarrTileStore(target, mode="r") as opened:
        assert torch.equal(opened.open("prediction")[...], expected[...])


def test_predict_reduces_each_output_as_it_is_told(cli: CommandLine, model: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "image.npy", np.zeros((3, 24, 24), np.float32))

    def outputs(net: str, tensor_id: str, *reduce: str) -> list[tuple[list[int], str]]:
        given = [tmp_path / "image.npy", tmp_path / "p.zarr", "--window", "16", "--dims", "c,y,x", "--json"]
        options = ["--tensor-id", tensor_id, *(word for each in reduce for word in ("--reduce", each))]
        found = cli("predict", "--module", f"{model}:{net}", *given, *options)
        return [(each["shape"], each["dtype"]) for each in found.json["tensors"]]

    each = ("labels=argmax", f"sure={model}:largest")
    labels, sure, rest = ([24, 24], "uint8"), ([24, 24], "float32"), ([5, 24, 24], "float32")
    assert outputs("several", "each", *each) == [labels, sure, rest]
    assert outputs("net", "one", f"{model}:largest") == [sure]
    assert outputs("net", "two", *each) == [labels, sure]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["argmax", "softmax"], "each --reduce must name a different output"),
        (["a=argmax", "a=softmax"], "each --reduce must name a different output"),
        (["argmax", "a=softmax"], "each --reduce must name a different output"),
        (["a={model}:nothing"], "has no 'nothing'"),
    ],
)
def test_predict_refuses_reductions_of_which_it_cannot_tell_the_output(
    given: list[str], told: str, cli: CommandLine, model: Path, tmp_path: Path
) -> None:
    options = [word for each in given for word in ("--reduce", each.format(model=model))]
    found = cli("predict", "--module", f"{model}:net", "image.npy", tmp_path / "p.zarr", "--window", "16", *options)
    assert (found.code, told in found.err) == (2, True), found.err


@pytest.mark.parametrize("kind", ["png", "zarr", "py:image", "tensor"])
def test_predict_reads_many_kinds_of_sources(kind: str, cli: CommandLine, model: Path, tmp_path: Path) -> None:
    image = np.random.default_rng(0).integers(0, 255, (24, 24), np.uint8)
    source, options = f"{tmp_path}/cli_image.{kind}", [] if kind in ("png", "zarr") else ["--dims", "y,x"]
    if kind == "png":
        Image.fromarray(image).save(source)
    elif kind == "zarr":
        zarr.create_array(source, data=image, dimension_names=("y", "x"))
    elif kind == "py:image":
        (tmp_path / "cli_image.py").write_text("import numpy\nimage = numpy.zeros((24, 24), 'uint8')\n")
    else:
        with ZarrTileStore(source) as store:
            window = TensorWindow((24, 24))
            InfiniteTensor((24, 24), lambda _ctx: torch.ones(24, 24), window, tile_store=store, tensor_id="t")[...]
        options += ["--source-tensor", "t"]
    given = [source, tmp_path / "p.zarr", "--window", "16", *options, "--json"]
    found = cli("predict", "--module", f"{model}:flat", *given)
    assert found.code == 0, found.err
    assert found.json["tensors"][0]["shape"] == [2, 24, 24]


def test_predict_tells_what_is_no_source(cli: CommandLine, model: Path, store: Path, tmp_path: Path) -> None:
    (tmp_path / "text.npy").write_text("no array")
    for source, told in [
        (tmp_path / "text.npy", "text.npy must contain an array of numbers"),
        (tmp_path / "nothing.png", "there is no file"),
        (store, "give its id with --source-tensor"),
    ]:
        found = cli("predict", "--module", f"{model}:net", source, tmp_path / "p.zarr", "--window", "16")
        assert (found.code, told in found.err) == (2, True), found.err
    assert not (tmp_path / "p.zarr").exists()


@pytest.mark.parametrize(
    ("option", "ending"),
    [("source", ".npy"), ("target", ""), ("--where", ".npy"), ("--module", ".py:net")],
)
def test_a_path_that_the_system_refuses_is_told_in_a_line(
    option: str, ending: str, cli: CommandLine, model: Path, tmp_path: Path
) -> None:
    np.save(tmp_path / "image.npy", np.zeros((1, 24, 24), np.float32))
    given = {"source": str(tmp_path / "image.npy"), "target": str(tmp_path / "p.zarr"), "--module": f"{model}:flat"}
    given |= {option: f"{tmp_path / ('a' * 300)}{ending}"}
    options = [word for name, value in given.items() if name.startswith("--") for word in (name, value)]
    found = cli("predict", given["source"], given["target"], *options, "--window", "16", "--dims", "c,y,x")
    assert (found.code, "File name too long" in found.err, len(found.err.splitlines())) == (1, True, 1), found.err


@pytest.mark.parametrize(
    "wrong",
    [
        ["--module", "nothing.py:net"],
        ["--module", "{model}:nothing"],
        ["--module", "{model}:fail"],
        ["--window", "0"],
        ["--region", "0:4,0:4,0:4"],
        ["--where", "nothing.npy"],
        ["--reduce", "argmin"],
        ["--padding", "mirror"],
        ["--max-memory", "1"],
        ["--dims", "y,x"],
        ["--shard", "2/2"],
    ],
    ids="=".join,
)
@pytest.mark.parametrize("option", [[], ["--overwrite"]], ids=["new", "overwrite"])
def test_predict_that_cannot_be_creates_no_store(
    option: list[str], wrong: list[str], cli: CommandLine, model: Path, tmp_path: Path
) -> None:
    np.save(tmp_path / "image.npy", np.zeros((1, 24, 24), np.float32))
    options = ["--module", f"{model}:flat", "--window", "16", "--dims", "c,y,x", *option]
    target = tmp_path / "new" / "p.zarr"
    given = [each.format(model=model) for each in wrong]
    assert cli("predict", tmp_path / "image.npy", target, *options, *given).code in (1, 2, 4)
    assert not target.parent.exists()


def test_predict_deletes_no_tensor_that_it_reads(cli: CommandLine, model: Path, store: Path) -> None:
    options = ["--module", f"{model}:half", "--window", "4", "--region", "0:4,0:4", "--overwrite"]
    found = cli("predict", *options, store, store, "--source-tensor", "rows", "--tensor-id", "rows")
    assert (found.code, "would delete tensor 'rows'" in found.err) == (1, True)
    assert tiles(store, "rows") == 8
