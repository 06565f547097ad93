"""What lies in the folder of a Zarr store, found without the library."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_OBJECT = re.compile(
    r"(?P<name>t-[^/]+)/(?:zarr\.json|"
    r"tiles-(?P<tiles>\w+)/(?:zarr\.json|c/(?P<chunk>[\d/]+))|"
    r"partial-(?P<partial>\w+)/(?:shared|drops|0\.(?P<tile>[-.\d]+)/\d+))"
)


@dataclass
class TensorFiles:
    """What is stored of one tensor.

    Attributes
    ----------
    definition : dict
        As it is stored.
    chunks : set of str
        Complete tiles.
    logs : set of str
        Those of the other tiles of which something is known, named like their chunks.
    size : int
        Of all of this and of logs that complete tiles have left behind, in bytes.
    """

    definition: dict[str, Any]
    chunks: set[str] = field(default_factory=set)
    logs: set[str] = field(default_factory=set)
    size: int = 0

    def chunk_of(self, tile: str) -> str:
        """The name of the chunk for that of a log."""
        origins = zip(self.definition["origin"], self.definition["tile_size"], strict=True)
        indices = zip(map(int, tile.split(".")), origins, strict=True)
        return "/".join(str(index + origin // size) for index, (origin, size) in indices)


class Files:
    """The objects of a store by tensor, and what is left over.

    Attributes
    ----------
    tensors : dict of str to TensorFiles
        By id.
    leavings : list of str
        What no tensor needs.
    """

    def __init__(self, root: Path) -> None:
        self.tensors: dict[str, TensorFiles] = {}
        self.leavings: list[str] = []
        definitions = {path.parent.name: _definition(path) for path in root.glob("t-*/zarr.json")}
        by_name = {name: TensorFiles(definition) for name, definition in definitions.items()}
        self.tensors = {tensor.definition["tensor_id"]: tensor for tensor in by_name.values()}
        paths = sorted(path for path in root.rglob("*") if path.is_file())
        found = {path: _OBJECT.fullmatch(path.relative_to(root).as_posix()) for path in paths}
        # Chunks before logs: the log of a complete tile is left over.
        for path in sorted(paths, key=lambda path: "/partial-" in path.as_posix()):
            match = found[path]
            tensor = by_name.get(match["name"]) if match else None
            if path != root / "zarr.json" and not (match and tensor and self._take(tensor, match, path)):
                self.leavings.append(path.relative_to(root).as_posix())

    def _take(self, tensor: TensorFiles, match: re.Match[str], path: Path) -> bool:
        """Whether `tensor` needs the object."""
        if (match["tiles"] or match["partial"] or tensor.definition["incarnation"]) != tensor.definition["incarnation"]:
            return False
        if match["chunk"] or match["tile"]:
            tensor.size += path.stat().st_size
        if match["chunk"]:
            tensor.chunks.add(match["chunk"])
        if match["tile"]:
            chunk = tensor.chunk_of(match["tile"])
            tensor.logs |= {chunk} - tensor.chunks
            return chunk not in tensor.chunks
        return True


def _definition(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_bytes())["attributes"]["infinite_tensor"]
    return found
