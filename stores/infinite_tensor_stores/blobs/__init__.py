"""Growable collections of equally shaped tensors, stored as Zarr arrays: `TensorBlob`.

On disk
-------
A blob is one Zarr v3 array of shape ``(rows, *shape)``. A chunk is a block of `block_size` rows::

    <target>/zarr.json       the array; attributes["infinite_tensor_blob"] says what only a blob knows
    <target>/c.7.0           block 7 of rows of one dimension: bytes, any compressors, CRC-32C
    <target>/writer.lock     on a local disk: the lock of the one that writes
    <target>/writers/<id>    elsewhere: its lease

Plain ``zarr.open_array(target)`` reads it. The last block is as long as the others; what lies in it beyond the last row
is zeros, and a hole in a file on a local disk.

What a commit is
----------------
Blocks are never changed in place: a new one is written, and takes the place of the old one by a rename, or by one
request. Then `zarr.json`, which holds the number of rows, is replaced in the same way: that is the commit. So after a
writer was killed, the rows of the last commit are there, and nothing else that lies in the blocks is seen.
`flush` commits all rows; a `write` that fills blocks commits these; `truncate` and `close` commit.

A row that is overwritten lies in a block that holds it whole, so half of it is never seen; of several rows that were
overwritten, some may be new and some old after a kill.

What is checked
---------------
A block that is missing, too short, or has another checksum is a StoreError that names it. Uncompressed blocks on a
local disk are read through memory maps; their checksum is compared when a process first maps a file, not again. Other
blocks are checked whenever they are read. A file that is not a regular one, or far too large, is damaged.

At each read, a reader on a local disk asks whether the `zarr.json` that it has read is still the one that is there: one
call of `stat`, of a file that it holds open, so that its number is given to no other. If not, it reads it again, and
drops blocks whose rows have changed. Elsewhere it does so at `refresh`.

Who may write
-------------
One writer, any number of readers. `writers` says how a second writer is kept out: by a lock on a local disk, by a lease
elsewhere.

From the bottom up: `header` (zarr.json), `writers` (the right to write), `location` (a prefix of a store, or a folder),
`blocks` (chunks), `indexing` (rows as users name and give them), `rows` (all rows, those not stored yet included),
`opening` (finding, creating and deleting), `blob` (`TensorBlob`).
"""

from infinite_tensor_stores.blobs.blob import TensorBlob

__all__ = ["TensorBlob"]
