"""Growable collections of equally shaped tensors, stored as Zarr arrays: `TensorBlob`.

On disk
-------
A blob is one Zarr v3 array of shape ``(rows, *shape)``. A chunk is a block of `block_size` rows::

    <target>/zarr.json       the array; attributes["infinite_tensor_blob"] contains what is specific to blobs
    <target>/c.7.0           block 7, for rows of one dimension: bytes, any compressors, CRC-32C
    <target>/writer.lock     on a local disk: the lock of the writer
    <target>/writers/<id>    elsewhere: the lease of the writer

Plain ``zarr.open_array(target)`` reads it. All blocks have the same length; after the last row, the last block contains
zeros, which are a hole in the file on a local disk, and at its end how many rows there were.

What a commit is
----------------
Blocks are never changed in place: a new block is written, and replaces the old one by a rename or a single request.
Then `zarr.json`, which contains the number of rows, is replaced in the same way: that is the commit. So after a writer
was killed, readers see the rows of the last commit, and nothing else that is in the blocks.
`flush` commits all rows; a `write` that fills blocks commits these blocks; `truncate` and `close` commit.

Each row lies in one block, so a reader never sees half of an overwritten row. If a writer is killed while it
overwrites several rows, some of them may be new and some old.

What is checked
---------------
A block that is missing, too short, older than `zarr.json`, or has another checksum raises a StoreError that names it.
Uncompressed blocks on a local disk are read through memory maps; their checksum is compared only when a process first
maps a file. Other blocks are checked at every read. A file that is not a regular file, or far too large, counts as
damaged.

At each read, a reader on a local disk checks with one call of `stat` whether `zarr.json` is still the file that it has
read. It keeps that file open, so that no new file can get its inode number. If `zarr.json` was replaced, the reader
reads it again and drops blocks whose rows have changed. `Header.marks` tell it whether they have, after a restored
backup too. On other storage it does so only at `refresh`.

Who may write
-------------
One writer, any number of readers. `writers` keeps a second writer out: by a lock on a local disk, by a lease elsewhere.

From the bottom up: `header` (zarr.json), `writers` (the right to write), `location` (a prefix of a store, or a folder),
`blocks` (chunks), `indexing` (indices and rows as users give them), `rows` (all rows, including those not stored yet),
`opening` (finding, creating and deleting), `blob` (`TensorBlob`).
"""

from infinite_tensor_stores.blobs.blob import TensorBlob

__all__ = ["TensorBlob"]
