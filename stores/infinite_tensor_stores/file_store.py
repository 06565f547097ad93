"""A folder as a zarr Store."""

from __future__ import annotations

import asyncio

from zarr.storage import LocalStore

from infinite_tensor_stores.files import read_file


class FileStore(LocalStore):
    """What `LocalStore` does, without waiting for a FIFO and without following a link when it deletes."""

    async def read(self, key: str, most: int) -> bytes | None:
        """The object, as of `read_file`."""
        return await asyncio.to_thread(read_file, self.root / key, most)

    async def delete_dir(self, prefix: str) -> None:
        """Delete all objects below a folder. Of a symbolic link only the link goes."""
        path = self.root / prefix
        if path.is_symlink():
            self._check_writable()
            path.unlink(missing_ok=True)
        else:
            await super().delete_dir(prefix)
