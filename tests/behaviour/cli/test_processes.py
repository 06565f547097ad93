"""The command as a process: how soon it starts, how it ends, and what it does on a terminal."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import termios
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from infinite_tensor import InfiniteTensor, TensorWindow, ZarrTileStore
from tests.support.command_line import AS_A_SCRIPT, COMMAND, PATIENCE, in_a_process
from tests.support.interpreters import run, start


def modules(*arguments: object) -> set[str]:
    """What a command imports."""
    code = "import sys; from infinite_tensor.cli.running import run; run(sys.argv[1:]); print('imported', *sys.modules)"
    command = [sys.executable, "-c", code, *map(str, arguments)]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE)
    return set(found.stdout.rpartition("imported ")[2].split())


def test_help_and_wrong_arguments_import_nothing_that_takes_long(store: Path) -> None:
    slow = {"torch", "numpy", "zarr", "fsspec", "h5py"}
    assert modules("--help") & slow == set()
    assert modules("read", store, "rows", "--region", "a") & slow == set()


def test_a_process_ends_with_the_exit_code(store: Path) -> None:
    listed = in_a_process("ls", store)
    assert (listed.code, listed.err) == (0, "")
    assert listed.out.startswith("tensor_id  shape")
    assert in_a_process("ls", store / "nothing").code == 1
    assert in_a_process("ls").code == 2


@pytest.mark.slow
def test_a_reader_that_has_seen_enough_is_no_error(store: Path) -> None:
    # An interpreter of its own: what Python does of itself at the end must fail no more.
    process = subprocess.Popen([*COMMAND, "ls", str(store)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is full")
@pytest.mark.parametrize("options", [["ls"], ["ls", "--json"], ["read", "--fill-value", "0", "--region", "0:99,0:99"]])
def test_an_output_that_is_full_is_told_in_a_line(options: list[str], store: Path) -> None:
    command, *others = options
    name = ["rows"] if command == "read" else []
    found = in_a_process(command, store, *name, *others, stdout="/dev/full")
    assert (found.code, found.err) == (1, "Error: cannot print: No space left on device\n")


INTERRUPTED = """
import itertools, signal, torch
from infinite_tensor import InfiniteTensor, TensorWindow, ZarrTileStore

calls = itertools.count(1)

def interrupted(*_):
    if next(calls) == {calls}:
        signal.raise_signal(signal.{name})
    return torch.ones(4, 4)

t = InfiniteTensor(
    (None, None), interrupted, TensorWindow((4, 4)), tile_store=ZarrTileStore({store!r}, tile_size=4), tensor_id="t"
)
"""


def interrupted(folder: Path, name: str = "SIGINT") -> tuple[str, ...]:
    """The arguments of a command that fills `s.zarr` in a folder, and gets a signal at its 20th call of ``f``."""
    code = folder / "code.py"
    code.write_text(INTERRUPTED.format(store=str(folder / "s.zarr"), calls=20, name=name))
    return "fill", "--module", f"{code}:t", "--region"


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_an_interrupted_fill_exits_with_130_and_keeps_what_is_finished(name: str, tmp_path: Path) -> None:
    store = tmp_path / "s.zarr"
    found = in_a_process(*interrupted(tmp_path, name), "0:400,0:400")
    assert (found.code, found.out) == (130, "")
    assert found.err == "Interrupted: finished work is stored; run the command again to continue\n"
    with ZarrTileStore(store, mode="r") as opened:
        assert 0 < opened.tensor_info("t").tiles_complete < 20
        assert opened.verify("t") == []


@pytest.mark.slow
def test_a_command_that_is_to_ignore_sigterm_does(tmp_path: Path) -> None:
    fill = [*COMMAND, *interrupted(tmp_path, "SIGTERM"), "0:400,0:400"]
    found = subprocess.run(
        ["/bin/sh", "-c", 'trap "" TERM; "$@"', "sh", *fill],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert found.returncode == 0


IMPORTING = """
import signal, sys

class Pressed:
    def find_spec(self, name, *_):
        if name == "infinite_tensor.cli.running":
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Pressed())
"""


def test_a_command_that_is_interrupted_while_it_starts_prints_no_traceback() -> None:
    option, code = AS_A_SCRIPT
    found = run(option, IMPORTING + code, "--help")
    assert (found.returncode, found.stdout, found.stderr) == (130, "", "")


INTERRUPTED_NET = """
import itertools, signal, torch
from infinite_tensor import predict

calls = itertools.count(1)

def net(batch):
    if next(calls) == 20:
        signal.raise_signal(signal.SIGINT)
    return batch

if __name__ == "__main__":
    predict(net, torch.zeros(1, 64, 8000), {store!r}, window=64, overlap=0, batch_size=1, dims=("c", "y", "x"))
"""


@pytest.mark.parametrize("started", [pytest.param("python", marks=pytest.mark.slow), "command", "overwrite"])
def test_an_interrupted_predict_says_in_a_line_how_it_continues(started: str, tmp_path: Path) -> None:
    store, source, script = (tmp_path / name for name in ("s.zarr", "i.npy", "interrupted.py"))
    script.write_text(INTERRUPTED_NET.format(store=str(store)))
    said = ": predict was interrupted. Finished work is stored; to continue, call predict again{}"
    if started == "python":
        found = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, timeout=PATIENCE)
        *others, last = found.stderr.splitlines()
        assert last == "KeyboardInterrupt" + said.format("")
        assert sum(line.startswith("  File ") for line in others) <= 5
        return
    np.save(source, np.zeros((1, 64, 8000), np.float32))
    options = ["--window", "64", "--overlap", "0", "--batch-size", "1", "--dims", "c,y,x"]
    if started == "overwrite":
        with ZarrTileStore(store) as opened:
            InfiniteTensor((4,), lambda _ctx: 0, TensorWindow((4,)), tile_store=opened, tensor_id="prediction")
        options.append("--overwrite")
    outcome = in_a_process("predict", "--module", f"{script}:net", source, store, *options)
    without = " without --overwrite" if started == "overwrite" else ""
    assert (outcome.code, outcome.err) == (130, f"Interrupted{said.format(without)}\n")
    with ZarrTileStore(store, mode="r") as opened:
        info = opened.tensor_info("prediction")
    assert info.tiles_complete + info.tiles_partial > 0


def everything(terminal: int) -> bytes:
    """What is shown until nobody has the other end open any more, which Linux tells by an error."""
    shown = b""
    with suppress(OSError):
        while part := os.read(terminal, 2**16):
            shown += part
    return shown


def on_a_terminal(*arguments: object, keys: bytes = b"", plain: bool = True) -> tuple[int, str]:
    """The exit code of a command, and what it shows on a terminal on which somebody presses keys."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 100))
    with ThreadPoolExecutor(1) as reader:
        shown = reader.submit(everything, ours)
        wait = start([*AS_A_SCRIPT, *arguments], [os.ttyname(theirs)] * 3)
        os.write(ours, keys)
        code = wait(PATIENCE)
        os.close(theirs)
    os.close(ours)
    text = shown.result().decode()
    return code, re.sub(r"\x1b\[[0-9;]*m", "", text) if plain else text


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="terminals differ")


@on_linux
def test_somebody_is_asked_before_a_tensor_is_deleted(store: Path) -> None:
    # Neither no nor the end of the input is an answer.
    for keys in (b"n\n", b"\x04"):
        code, shown = on_a_terminal("rm", store, "twice", keys=keys)
        assert (code, "This deletes 'twice'" in shown) == (1, True)
        assert shown.splitlines()[-1].endswith("Nothing was changed.")
    code, shown = on_a_terminal("rm", store, "twice", keys=b"y\n")
    assert (code, "deleted 'twice'" in shown) == (0, True)
    with ZarrTileStore(store, mode="r") as opened:
        assert opened.tensor_ids() == ["rows"]


@on_linux
def test_an_interrupted_fill_leaves_its_bar_and_says_below_it_how_to_continue(tmp_path: Path) -> None:
    code, shown = on_a_terminal(*interrupted(tmp_path), "0:400,0:400")
    *_, bar, said = shown.splitlines()
    assert code == 130
    assert "/10000 [" in bar
    assert said == "Interrupted: finished work is stored; run the command again to continue"
