"""The backend that docs/backends.md shows: what a third party writes to have a store of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from infinite_tensor.tilestore.persistent import PersistentTileStore

_PAGE = Path(__file__).parents[2] / "docs" / "backends.md"

if TYPE_CHECKING:

    class SQLiteTileStore(PersistentTileStore):
        _create_document: Any = None
        _delete_document: Any = None
        _read_tiles: Any = None
        _write_tiles: Any = None
        _read_partials: Any = None
        _write_partials: Any = None

        def __init__(self, path: str | Path, **options: Any) -> None: ...

else:
    _code = _PAGE.read_text(encoding="utf-8").split("```python\n")[1].partition("```")[0]
    exec(compile(_code, str(_PAGE), "exec"), globals())  # noqa: S102  (what the page shows is what runs)
