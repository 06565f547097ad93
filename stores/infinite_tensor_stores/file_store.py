"""A folder as a zarr Store."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress

from zarr.core.buffer import Buffer
from zarr.storage import LocalStore

from infinite_tensor.support.disks import give_name
from infinite_tensor_stores.files import read_file


class FileStore(LocalStore):
    """What `LocalStore` does, without waiting for a FIFO, following a link when it deletes, or needing hard links."""

    async def read(self, key: str, most: int) -> bytes | None:
        """The object, as of `read_file`."""
        return await asyncio.to_thread(read_file, self.root / key, most)

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        """Write an object unless there is one."""
        self._check_writable()
        await asyncio.to_thread(self._create, key, value)

    def _create(self, key: str, value: Buffer) -> None:
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{uuid.uuid4().hex}.partial")
        try:
            partial.write_bytes(value.as_buffer_like())
            with suppress(FileExistsError):
                give_name(partial, path, self.root)
        finally:
            partial.unlink(missing_ok=True)

    async def delete_dir(self, prefix: str) -> None:
        """Delete all objects below a folder. Of a symbolic link only the link goes."""
        path = self.root / prefix
        if path.is_symlink():
            self._check_writable()
            path.unlink(missing_ok=True)
        else:
            await super().delete_dir(prefix)
