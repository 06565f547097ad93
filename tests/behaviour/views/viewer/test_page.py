"""The page of the viewer in a browser without a screen; skipped where there is none."""

from __future__ import annotations

import io
import json
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from math import ceil, floor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
import torch

from infinite_tensor import InfiniteTensor, TensorWindow, ValidationError, ZarrTileStore, from_array, sl
from tests.support.command_line import COMMAND
from tests.support.counting import Counted
from tests.support.reference import Index

pytest.importorskip("bokeh")

# A session that ends while Bokeh sends to its page leaves the coroutine that would have sent.
pytestmark = pytest.mark.filterwarnings("ignore:.*WSHandler.send_message:pytest.PytestUnraisableExceptionWarning")

PATIENCE = 20_000.0
MODELS = "[...Bokeh.documents[0]._all_models.values()]"
GREY = (217, 217, 217)
"""Of what is not stored."""
MODULE = """
import torch
from infinite_tensor import InfiniteTensor, TensorWindow

world = InfiniteTensor(
    (None, None), lambda ctx: torch.full((256, 256), 7.0), TensorWindow((256, 256)), tile_store="w.zarr",
    tensor_id="world",
)
"""
SLOW_MODULE = """
from pathlib import Path
from time import sleep
import torch
from infinite_tensor import InfiniteTensor, TensorWindow

def f(ctx):
    with open("calls", "a") as calls:
        calls.write("x")
    while not Path("may_end").exists():
        sleep(0.01)
    return torch.ones(64, 64)

world = InfiniteTensor((None, None), f, TensorWindow((64, 64)), tile_store="w.zarr", tensor_id="world")
"""
TOOLTIP = """
() => {
    const found = []
    const walk = node => {
        if (node.classList?.contains("bk-tooltip-content")) found.push(node.textContent)
        for (const child of [...(node.children || []), ...(node.shadowRoot?.children || [])]) walk(child)
    }
    walk(document.body)
    return found.join(" ")
}
"""


def until(condition: Callable[[], bool]) -> None:
    """Wait for something on this side."""
    end = time.monotonic() + PATIENCE / 1000
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


class Page:
    """The page of a view, in a browser."""

    def __init__(self, page: Any, url: str) -> None:
        self._page, self._url, self.requests, self.errors = page, url, list[str](), list[str]()
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda said: self.errors.append(said.text) if said.type == "error" else None)
        page.goto(url)
        page.wait_for_function("window.Bokeh && Bokeh.documents.length")

    def model(self, name: str) -> str:
        return f"{MODELS}.findLast(each => each.name == '{name}')"

    @property
    def status(self) -> str:
        return str(self._page.evaluate(f"{self.model('status')}.text"))

    def wait_for(self, what: str) -> None:
        self._page.wait_for_function(what, timeout=PATIENCE)

    def settle(self) -> None:
        """Wait until nothing is to come of what is seen now, also after the page has told how large it is."""
        drawn = "each.renderers.some(({data_source: of}) => of.name == 'tiles' && of.data.x.length)"
        before: list[tuple[float, float, float]] | None = None
        while before != (now := self.tiles()):
            before = now
            self._page.wait_for_timeout(300)
            self.wait_for(f"{MODELS}.every(each => each.name != 'status' || !each.text.includes('to come'))")
            self.wait_for(f"{MODELS}.every(each => each.type != 'Figure' || {drawn})")

    @property
    def with_tiles(self) -> str:
        """The levels, of whatever tensor, that have tiles."""
        sources = f"{MODELS}.filter(each => each.name == 'tiles')"
        return f"{sources}.filter(each => each.data.x.length)"

    def tiles(self) -> list[tuple[float, float, float]]:
        """Where the tiles that were sent begin, and how wide they are."""
        sources = f"{MODELS}.filter(each => each.name == 'tiles')"
        found = self._page.evaluate(f"{sources}.map(each => [[...each.data.y], [...each.data.x], [...each.data.dw]])")
        return [tile for columns in found for tile in zip(*columns, strict=True)]

    def marks(self, column: str) -> list[Any]:
        return list(self._page.evaluate(f"[...{self.model('marks')}.data['{column}']]"))

    def drag(self, dx: float, dy: float) -> None:
        mouse = self._page.mouse
        mouse.move(600, 400)
        mouse.down()
        mouse.move(600 + dx, 400 + dy, steps=5)
        mouse.up()

    def zoom(self, wheel: float) -> None:
        self._page.mouse.move(600, 400)
        self._page.mouse.wheel(0, wheel)

    def go(self, text: str) -> None:
        ranges = f"{MODELS}.filter(each => each.type == 'Range1d')"
        starts = f"{ranges}.map(each => each.start).join()"
        before = self._page.evaluate(starts)
        self._page.get_by_placeholder("y, x").fill(text)
        self._page.keyboard.press("Enter")
        self.wait_for(f"{starts} != '{before}'")

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something on this side, and then until nothing is to come."""
        until(condition)
        self.settle()

    def is_served(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", urlsplit(self._url).port or 0)).close()
        except OSError:
            return False
        return True

    def close(self) -> None:
        self._page.close()

    def hover(self, x: float, y: float) -> list[str]:
        """What is told of a place of the screen: the coordinates, and the value."""
        self._page.mouse.move(x - 3, y)
        self._page.mouse.move(x, y)
        self.wait_for(f"({TOOLTIP})().includes('value')")
        return str(self._page.evaluate(TOOLTIP)).replace(":", " ").split()

    def tint(self) -> None:
        """Have what was stored tinted."""
        self._page.locator("input[type=checkbox]").first.check()

    def scale(self) -> tuple[float, float]:
        """The ends of the scale of colours."""
        mapper = self.model("scale")
        low, high = self._page.evaluate(f"[{mapper}.low, {mapper}.high]")
        return low, high

    def seen(self) -> tuple[float, float]:
        """The smallest and the largest value of `ramp` that is seen."""
        ranges = f"{MODELS}.filter(each => each.type == 'Range1d')"
        (left, right), (bottom, top) = self._page.evaluate(f"{ranges}.slice(0, 2).map(each => [each.start, each.end])")
        (y0, y1), (x0, x1) = ((floor(a + 0.5), ceil(b + 0.5) - 1) for a, b in ((top, bottom), (left, right)))
        return 1000.0 * y0 + x0, 1000.0 * y1 + x1

    def picture(self) -> Any:
        """The colours of the middle of the screen."""
        image = pytest.importorskip("PIL.Image").open(io.BytesIO(self._page.screenshot()))
        return np.asarray(image.convert("RGB"))[150:700, 150:1000]


@pytest.fixture
def opened(browser: Any) -> Iterator[Callable[..., Page]]:
    views, pages = [], []

    def open_page(tensor: InfiniteTensor, *others: InfiniteTensor, query: str = "", **options: Any) -> Page:
        views.append(tensor.view(*others, open_browser=False, **options))
        pages.append(browser.new_page(viewport={"width": 1200, "height": 800}))
        return Page(pages[-1], views[-1].url + query)

    yield open_page
    for page in pages:
        page.close()
    for view in views:
        view.close()


def ramp(ctx: Index) -> torch.Tensor:
    y, x = (torch.arange(256.0) + 256 * i for i in ctx)
    return y[:, None] * 1000 + x


def tensor_of(f: Callable[..., Any], **options: Any) -> InfiniteTensor:
    return InfiniteTensor((None, None), f, TensorWindow((256, 256)), dims=("y", "x"), tensor_id="t", **options)


def test_one_walks_about_and_everything_is_computed_and_sent_once(opened: Callable[..., Page]) -> None:
    f = Counted(ramp)
    t = tensor_of(f)
    page = opened(t)
    page.settle()
    first = set(f.calls)
    assert f.calls[0] in {(0, 0), (-1, 0), (0, -1), (-1, -1)}
    assert len(first) < 40
    page.drag(-400, -300)
    page.until(lambda: len(f.calls) > len(first))
    assert 0 < len(f.calls) - len(first) < len(first)
    page.drag(400, 300)
    page.settle()
    page.zoom(300)
    page.settle()
    page.zoom(-300)
    page.settle()
    assert max(Counter(f.calls).values()) == 1
    assert max(Counter(page.tiles()).values()) == 1
    assert not (page.picture() == GREY).all(-1).any()
    assert len(np.unique(page.picture().reshape(-1, 3), axis=0)) > 50
    name_y, y, name_x, x, _, value = page.hover(500, 300)
    assert (name_y, name_x) == ("y", "x")
    assert float(value) == pytest.approx(t[int(y), int(x)].item(), rel=1e-5)
    assert {url.split("/")[2].split(":")[0] for url in page.requests} == {"localhost"}
    assert page.errors == []


@pytest.mark.slow
def test_a_slow_function_blocks_neither_the_page_nor_what_is_stored(opened: Callable[..., Page]) -> None:
    go_on = threading.Event()

    def slow(ctx: Index) -> torch.Tensor:
        if ctx[0] > 500:
            go_on.wait(60)
        return ramp(ctx)

    t = tensor_of(slow)
    _ = t[-1024:1024, -1024:1024]
    page = opened(t, query="?y=1000000&x=-7")
    page.wait_for(f"{page.model('status')}.text.includes('to come')")
    page.go("0, 0")
    page.settle()
    assert int(page.hover(500, 300)[1]) < 1024
    assert not go_on.is_set()
    go_on.set()
    page.go("1000000, -7")
    page.settle()
    assert int(page.hover(500, 300)[1]) > 999_000


def test_an_error_stands_on_its_tile_and_others_are_there(opened: Callable[..., Page]) -> None:
    def picky(ctx: Index) -> torch.Tensor:
        if ctx == (0, 0):
            raise RuntimeError("no <b>hills</b> here")
        return ramp(ctx)

    f = Counted(picky)
    page = opened(tensor_of(f))
    page.settle()
    assert "no <b>hills</b> here" in " ".join(page.marks("text")).replace("\n", " ")
    assert len(page.tiles()) > 5
    page.drag(-50, -50)
    page.settle()
    assert f.calls.count((0, 0)) == 1
    assert page.errors == []


def test_what_is_missing_without_a_function_is_grey_and_what_is_stored_is_found(
    opened: Callable[..., Page], tmp_path: Path
) -> None:
    store = ZarrTileStore(tmp_path / "t.zarr", tile_size=256)
    tensor_of(ramp, tile_store=store).fill(sl[51200:51456, 2560:2816])
    store.close()
    with ZarrTileStore(tmp_path / "t.zarr", mode="r") as again:
        page = opened(again.open("t"))
        page.settle()
        assert page.tiles() == [(51199.5, 2559.5, 256)]
        assert (page.picture() == GREY).all(-1).mean() > 0.5


@pytest.mark.slow
def test_from_afar_what_is_too_much_to_compute_is_not(opened: Callable[..., Page]) -> None:
    f = Counted(ramp)
    t = tensor_of(f)
    _ = t[0:256, 0:256]
    page = opened(t, query="?zoom=-4", budget=100)
    page.settle()
    assert len(f.calls) == 1
    assert "zoom in" in page.status
    page.go("128, 128, 0")
    page.until(lambda: len(f.calls) > 4)
    assert len(f.calls) > 4


def test_a_budget_of_0_shows_what_is_stored(opened: Callable[..., Page]) -> None:
    f = Counted(ramp)
    t = tensor_of(f)
    _ = t[0:256, 0:256]
    page = opened(t, budget=0)
    page.settle()
    assert len(f.calls) == 1
    assert page.status == ""
    assert (page.picture() == GREY).all(-1).any()


@pytest.mark.slow
def test_what_was_stored_is_tinted_where_that_is_wanted(opened: Callable[..., Page], tmp_path: Path) -> None:
    t = tensor_of(ramp, tile_store=ZarrTileStore(tmp_path / "t.zarr", tile_size=256))
    _ = t[0:256, 0:256]
    page = opened(t)
    page.settle()
    assert page.marks("fill") == []
    page.tint()
    page.wait_for(f"{page.model('marks')}.data.left.length")
    assert list(zip(page.marks("left"), page.marks("top"), strict=True)) == [(-0.5, -0.5)]


@pytest.mark.slow
def test_the_scale_is_from_the_smallest_to_the_largest_value_that_is_seen(opened: Callable[..., Page]) -> None:
    page = opened(tensor_of(ramp), query="?y=100&x=100&zoom=1")
    # The numbers beside the scale, which come with it, take room of the picture.
    page.until(lambda: page.scale() == page.seen())
    before = page.seen()
    page.drag(-20, -20)
    page.until(lambda: page.seen() != before and page.scale() == page.seen())
    assert page.scale() == page.seen() != before


@contextmanager
def command(browser: Any, folder: Path, module: str) -> Iterator[tuple[subprocess.Popen[str], Page]]:
    """The command, which shows `world` of a module, and its page."""
    (folder / "world.py").write_text(module)
    ZarrTileStore(folder / "w.zarr", mode="w").close()
    line = [*COMMAND, "view", "w.zarr", "--module", "world.py:world", "--no-browser", "--json"]
    with subprocess.Popen(line, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")["url"]
        yield process, Page(browser.new_page(viewport={"width": 1200, "height": 800}), url)


def test_the_command_shows_what_a_module_computes_and_stores_nothing(browser: Any, tmp_path: Path) -> None:
    with command(browser, tmp_path, MODULE) as (process, page):
        page.settle()
        assert page.hover(500, 300)[-1] == "7"
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE / 1000) == 0
    with ZarrTileStore(tmp_path / "w.zarr", mode="r") as store:
        assert store.extent("world") is None


@pytest.mark.slow
@pytest.mark.parametrize("presses", [1, 2])
def test_the_command_ends_after_the_present_call_of_f_or_at_a_second_ctrl_c(
    browser: Any, tmp_path: Path, presses: int
) -> None:
    with command(browser, tmp_path, SLOW_MODULE) as (process, page):
        until((tmp_path / "calls").exists)
        process.send_signal(signal.SIGINT)
        until(lambda: not page.is_served())
        if presses == 1:
            (tmp_path / "may_end").touch()
        while presses == 2 and process.poll() is None:
            process.send_signal(signal.SIGINT)
            time.sleep(0.1)
        # The second may come while the first is still taken.
        assert process.wait(PATIENCE / 1000) in ([0] if presses == 1 else [-signal.SIGINT, 130])
    assert (tmp_path / "calls").read_text() == "x"


@pytest.mark.slow
@pytest.mark.parametrize("leave", ["page", "view", "place"])
def test_who_leaves_is_computed_for_no_longer_than_one_call(browser: Any, leave: str) -> None:
    calls = list[Index]()

    def slow(ctx: Index) -> torch.Tensor:
        calls.append(ctx)
        time.sleep(0.05)
        return torch.ones(16, 16)

    with InfiniteTensor((None, None), slow, TensorWindow((16, 16))).view(open_browser=False) as view:
        page = Page(browser.new_page(viewport={"width": 1200, "height": 800}), view.url + "?zoom=1")
        until(lambda: bool(calls))
        if leave == "place":
            page.go("1000000, 0")
            until(lambda: calls[-1][0] > 1000)
        else:
            (page if leave == "page" else view).close()
            until(lambda: "infinite_tensor-look" not in {thread.name for thread in threading.enumerate()})
        # Not all of a tile.
        assert sum(row < 1000 for row, _ in calls) < 200
        page.close()


def test_whole_numbers_under_the_mouse_have_all_their_digits(opened: Callable[..., Page]) -> None:
    values = [7240399, -(2**53) + 1, 2**60]
    image = torch.tensor(values).repeat_interleave(100).expand(300, 300)
    page = opened(from_array(image, dims=("y", "x")))
    page.settle()
    assert [page.hover(x, 300)[-1] for x in (350, 550, 800)] == ["7240399", "-9007199254740991", "1.15292e+18"]


@pytest.mark.parametrize("value", [0.0, *(pytest.param(each, marks=pytest.mark.slow) for each in (-1e17, 1e300))])
def test_pixels_of_one_value_have_a_scale(opened: Callable[..., Page], value: float) -> None:
    page = opened(from_array(torch.full((300, 300), value, dtype=torch.float64)))
    page.settle()
    low, high = page.scale()
    assert low == value < high


def test_colours_and_labels_are_shown_beside_each_other(opened: Callable[..., Page]) -> None:
    photograph = torch.zeros(3, 300, 400, dtype=torch.uint8)
    photograph[0] = 200
    labels = torch.zeros(300, 400, dtype=torch.int64)
    labels[:, 200:] = 1
    plain = from_array(labels, dims=("y", "x"))
    described = plain.describe(colours={0: "sea #112244", 1: "land #44cc22"})
    page = opened(from_array(photograph, dims=("c", "y", "x")), plain, described)
    page.settle()
    colours = {tuple(colour) for colour in page.picture().reshape(-1, 3).tolist()}
    assert {(200, 0, 0), (31, 119, 180), (174, 199, 232), (17, 34, 68), (68, 204, 34)} <= colours


@pytest.mark.slow
def test_tensors_beside_each_other_are_all_there_before_anybody_moves(opened: Callable[..., Page]) -> None:
    page = opened(*(from_array(torch.rand(300, 400)) for _ in range(3)))
    page.wait_for(f"{page.with_tiles}.length == 3")


@pytest.mark.slow
def test_a_place_or_zoom_beyond_all_others_is_the_last_one(opened: Callable[..., Page]) -> None:
    page = opened(tensor_of(ramp), query="?y=1e300&zoom=-1e308")
    page.wait_for(f"{page.model('status')}.text.includes('a pixel shows 64 x 64')")
    page.go("1e300, -1e300, 1e308")
    page.settle()
    assert {(y, x) for y, x, _ in page.tiles()} >= {(2.0**50 - 0.5, -(2.0**50) - 0.5)}


def test_what_is_no_tensor_and_no_port_is_refused() -> None:
    t = tensor_of(ramp)
    with pytest.raises(ValidationError, match="InfiniteTensors, got"):
        t.view(torch.ones(2, 2))  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="port must be"):
        t.view(port=70_000)
    with pytest.raises(ValidationError, match="reshape"):
        t.view(-1)  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="budget must be"):
        t.view(budget=-1)


@pytest.mark.parametrize(("host", "status"), [("localhost", 200), ("127.0.0.1", 200), ("localhost.evil.example", 404)])
def test_a_page_of_another_host_gets_nothing(host: str, status: int) -> None:
    with tensor_of(ramp).view(open_browser=False) as view:
        address = urlsplit(view.url)
        for path, headers in {
            "/": {},
            "/ws": {"Upgrade": "websocket", "Origin": f"http://{host}:{address.port}"},
        }.items():
            with closing(HTTPConnection("127.0.0.1", address.port, PATIENCE)) as asked:
                asked.request("GET", path, headers={"Host": f"{host}:{address.port}", **headers})
                # Without a key, a WebSocket is refused as a bad request.
                assert asked.getresponse().status == (400 if status == 200 and headers else status)
