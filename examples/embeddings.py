"""Collect embeddings over several runs, and search them: what the standard library of Python has to say.

Each run embeds the documentation of some more functions and classes, and appends that to a TensorBlob; a second blob
holds their names. A run that is killed, or ends early, costs what it had not flushed: the next one continues where
both blobs end. Then the query is embedded too, and the nearest entries are printed.

    python examples/embeddings.py --query "compress data"
    python examples/embeddings.py --query "temporary directory"
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import inspect
import re
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import ModuleType

import torch

from infinite_tensor import StoreError, TensorBlob, ValidationError

MODULES = """
argparse ast asyncio base64 bisect bz2 calendar cmath collections configparser contextlib copy csv datetime
decimal difflib dis email fractions functools getpass glob gzip hashlib heapq hmac html http inspect io
ipaddress itertools json keyword linecache locale logging lzma mailbox math mimetypes numbers operator os
pathlib pickle pkgutil platform plistlib pprint queue quopri random re sched secrets select shelve shlex
shutil signal socket sqlite3 statistics string struct subprocess tarfile tempfile textwrap threading time
timeit token tokenize traceback types unicodedata unittest urllib.parse urllib.request uuid wave weakref
webbrowser xml.sax zipfile zlib
"""
WIDTH = 1024
"""Numbers of an embedding."""
NAME = 80
"""Bytes of a name."""
BATCH = 64
"""Entries between two flushes."""


def entries() -> Iterator[tuple[str, str]]:
    """Name and documentation of what the modules offer, always in the same order."""
    for name in MODULES.split():
        module = importlib.import_module(name)
        yield name, inspect.getdoc(module) or ""
        for member in public(module):
            text = inspect.getdoc(getattr(module, member)) or ""
            if text:
                yield f"{name}.{member}", text


def public(module: ModuleType) -> list[str]:
    """What a module offers that is its own: functions and classes."""
    found = []
    for name, value in sorted(vars(module).items()):
        own = getattr(value, "__module__", None) in (module.__name__, f"_{module.__name__}")
        if own and not name.startswith("_") and (inspect.isroutine(value) or inspect.isclass(value)):
            found.append(name)
    return found


def embedded(text: str) -> torch.Tensor:
    """An embedding of length one: words and parts of words, each hashed to a place and a sign."""
    vector = torch.zeros(WIDTH)
    for word in re.findall(r"[a-z]{3,}", text.lower()[:2000]):
        for part, weight in [(word, 1.0), *((f"#{word[at : at + 4]}", 0.3) for at in range(len(word) - 3))]:
            digest = int.from_bytes(hashlib.blake2b(part.encode(), digest_size=8).digest(), "big")
            vector[digest % WIDTH] += weight if digest >> 63 else -weight
    damped = vector.sign() * vector.abs().sqrt()
    return damped / damped.norm().clamp(min=1e-9)


def opened(path: Path, dtype: torch.dtype, width: int) -> TensorBlob:
    """The blob at `path`, which is made if there is none."""
    return TensorBlob.open(path, "a" if path.exists() else "w", dtype=dtype, shape=width)


def collect(folder: Path, most: int) -> None:
    """Append up to `most` new entries."""
    with (
        opened(folder / "vectors", torch.float16, WIDTH) as vectors,
        opened(folder / "names", torch.uint8, NAME) as names,
    ):
        # A run that was killed may have stored more of one than of the other.
        done = min(len(vectors), len(names))
        vectors.truncate(done)
        names.truncate(done)
        new = islice(entries(), done, done + most)
        while batch := list(islice(new, BATCH)):
            vectors.write(torch.stack([embedded(f"{name} {name} {text}") for name, text in batch]).half())
            names.write(torch.stack([packed(name) for name, _ in batch]))
            vectors.flush()
            names.flush()
        print(f"{done} entries were there, {len(names) - done} are new")


def packed(name: str) -> torch.Tensor:
    """A name as a row of bytes."""
    return torch.tensor(list(name.encode()[:NAME].ljust(NAME)), dtype=torch.uint8)


def search(folder: Path, query: str, count: int) -> list[tuple[float, str]]:
    """The nearest entries, the best first, each with its cosine."""
    wanted, best = embedded(query), torch.empty(0, 2, dtype=torch.float64)
    with TensorBlob.open(folder / "vectors") as vectors, TensorBlob.open(folder / "names") as names:
        # Block by block: memory holds one of them, however many entries there are.
        while len(block := vectors.read(vectors.block_size)):
            rows = torch.arange(vectors.tell() - len(block), vectors.tell())
            found = torch.stack([(block.float() @ wanted).double(), rows.double()], dim=1)
            best = torch.cat([best, found])
            best = best[best[:, 0].argsort(descending=True)[:count]]
        told = names[best[:, 1].long()]
    texts = [bytes(row.tolist()).decode().strip() for row in told]
    return list(zip(best[:, 0].tolist(), texts, strict=True))


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--folder", type=Path, default=Path("embeddings"), help="where to keep them (default: %(default)s)"
    )
    parser.add_argument("--most", type=int, default=600, help="entries to add in this run (default: %(default)s)")
    parser.add_argument("--query", default="compress data", help="what to look for (default: %(default)r)")
    parser.add_argument("--count", type=int, default=5, help="how many to print (default: %(default)s)")
    return parser.parse_args()


def main() -> None:
    """Collect, then search."""
    args = arguments()
    collect(args.folder, args.most)
    started = time.perf_counter()
    nearest = search(args.folder, args.query, args.count)
    print(f"nearest to {args.query!r}, found in {(time.perf_counter() - started) * 1000:.0f} ms:")
    for cosine, name in nearest:
        print(f"  {cosine:.2f}  {name}")


if __name__ == "__main__":
    try:
        main()
    except (StoreError, ValidationError) as problem:
        sys.exit(str(problem))
