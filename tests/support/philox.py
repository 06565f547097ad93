"""Philox4x64-10 and the layout of noise once more, written from their descriptions, with nothing but ints of Python."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import TypeAlias

Words: TypeAlias = tuple[int, ...]

_MASK = 2**64 - 1


def philox(key: Sequence[int], counter: Sequence[int]) -> Words:
    """Four random words, as Salmon et al. define them (2011)."""
    k0, k1 = key
    c0, c1, c2, c3 = counter
    for _ in range(10):
        one, other = 0xD2E7470EE14C6C93 * c0, 0xCA5A826395121157 * c2
        c0, c1, c2, c3 = other >> 64 ^ c1 ^ k0, other & _MASK, one >> 64 ^ c3 ^ k1, one & _MASK
        k0, k1 = k0 + 0x9E3779B97F4A7C15 & _MASK, k1 + 0xBB67AE8584CAA73B & _MASK
    return c0, c1, c2, c3


def words_of_cell(seed: int, stream: int, place: Sequence[int], counters: int) -> Iterator[int]:
    """The words of a cell of noise: those of so many counters behind the one that `noise` documents."""
    *beyond, d, c, b, a = (*(0,) * (4 - len(place)), *place)
    key: Words = seed, stream
    if beyond:
        digest = blake2b(" ".join(map(str, (seed, stream, *beyond))).encode(), digest_size=16).digest()
        key = int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")
    rest = 2**56 * len(place) + b % 2**56, c % 2**64, d % 2**64
    for number in range(counters):
        # numpy counts before it draws.
        yield from philox(key, (counters * (a + 2**52) + number + 1, *rest))


def halves(words: Iterator[int]) -> Iterator[int]:
    """Words of 32 bits, the lower half of each first."""
    for word in words:
        yield word & 2**32 - 1
        yield word >> 32


def signed(number: int, bits: int) -> int:
    """A number of so many bits in two's complement."""
    return number - 2**bits if number >> bits - 1 else number
