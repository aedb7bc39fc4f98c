"""Heads of coded groups, of all groups at once, on the host: what the programs need to know before they start.

Every size, count and table is checked here, so that no kernel reads past its group's bytes. NumPy works on all groups
together; only the walk along the stored tables goes step by step, as each says where the next begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pulse_kernels.errors import CodecError
from pulse_kernels.format.gap_tables import PARAMETERS
from pulse_kernels.format.group_bytes import CONTEXTS, LAST_CLASS, MOST_CLASSES
from pulse_kernels.format.symbols import GAP_TOKENS

I64 = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
COPIERS = 8
"""Threads that put coded bytes together."""
COPIED = 4 << 20
"""Bytes from which on they are worth their start."""
PADDING = 8
"""Zero bytes after the last group: what a look at the byte after a table may touch."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """Where the parts of all groups lie; byte offsets count from the start of the joined bytes.

    Attributes:
        first, classes: of each group; for ``gap`` zeros.
        run_group, run_kind, run_gap, run_end: of each class with changes: its group, its number, its gap parameter, and
            where its changes end among those of all groups. For ``gap`` there is one run a group that changes.
        table_at: where each stored table begins: one a run for ``class``, six a run for ``gap``.
        words_at, words_end: of each chunk, in words.
    """

    first: I64
    classes: I64
    run_group: I64
    run_kind: I64
    run_gap: I64
    run_end: I64
    table_at: I64
    words_at: I64
    words_end: I64


def refuse(group: I64, wrong: npt.NDArray[np.bool_], message: str) -> None:
    """Raise CodecError for the first of the groups for which something is wrong."""
    if wrong.any():
        raise CodecError(f"coded group {int(group[np.flatnonzero(wrong)[0]])}: {message}")


def within(counts: I64) -> tuple[I64, I64]:
    """Return (owner, number within it) of items of which ``counts[k]`` belong to owner k, end to end."""
    owner = np.repeat(np.arange(len(counts)), counts)
    return owner, np.arange(len(owner)) - (np.cumsum(counts) - counts)[owner]


def heads(groups: Sequence[bytes | memoryview]) -> tuple[I64, I64]:
    """Return the first class and the number of classes that each group's bytes say, which nobody has checked yet.

    Never less than one class: what is counted by them is thrown away if they are wrong.
    """
    said = np.array([(group[1], max(group[0], 1)) if len(group) > 1 else (0, 1) for group in groups], np.int64)
    first, classes = said.reshape(-1, 2).T
    return first, np.minimum(classes, MOST_CLASSES)


def join(groups: Sequence[bytes | memoryview], out: Bytes) -> I64:
    """Copy groups end to end into ``out``, and zeros after them; return where each begins, and the end of the last.

    Many bytes are copied by COPIERS threads: one gets 5 to 7 GB/s of a memory that gives 40 (measured beside an H200).
    """
    offsets = np.concatenate(([0], np.cumsum([len(group) for group in groups], dtype=np.int64)))
    size = int(offsets[-1])
    out[size:] = 0
    if size < COPIED:
        _copy(groups, offsets, out, 0, len(groups))
        return offsets
    cuts = np.searchsorted(offsets, np.linspace(0, size, COPIERS + 1)).tolist()
    cuts[0], cuts[-1] = 0, len(groups)
    with ThreadPoolExecutor(COPIERS) as pool:
        list(pool.map(lambda begin, end: _copy(groups, offsets, out, begin, end), cuts, cuts[1:]))
    return offsets


def _copy(groups: Sequence[bytes | memoryview], offsets: I64, out: Bytes, first: int, end: int) -> None:
    for begin, group in zip(offsets[first:end].tolist(), groups[first:end], strict=True):
        out[begin : begin + len(group)] = np.frombuffer(group, np.uint8)


def parse(data: Bytes, offsets: I64, changed: I64, is_class: bool, most: int, chunk: int, number: int = 0) -> Parsed:
    """Take the groups' bytes apart.

    Args:
        data: joined groups, PADDING zero bytes after them.
        offsets: [G + 1], where each begins; a group without changes has no bytes.
        changed: [G], its changed cells.
        is_class: the coder.
        most: symbols of a value table, of the cells' width.
        chunk: changes of a chunk.
        number: of the first group, for messages.

    Raises:
        CodecError: the bytes break a rule that needs no decoding to see.
    """
    size = np.diff(offsets)
    every = np.arange(len(changed)) + number
    refuse(every, (size > 0) & (changed == 0), "it has bytes, and no changed cells")
    refuse(every, (size < 4) & (changed > 0), "the group is shorter than its head")
    refuse(every, size % 2 != 0, "its size is odd")
    group = np.flatnonzero(changed)
    named = group + number
    at, size = offsets[group], size[group]
    classes, first = data[at].astype(np.int64), data[at + 1].astype(np.int64)
    possible = (classes > 0) & (classes <= MOST_CLASSES) & (first + classes - 1 <= LAST_CLASS)
    refuse(named, ~possible if is_class else (classes + first) > 0, "its classes are not possible")
    tables = at + 4 + 5 * classes
    end = tables + _u16(data, at + 2)
    chunks = -(-changed[group] // chunk)
    start = end + (end - at) % 2 + 2 * chunks
    refuse(named, start > at + size, "its bytes do not fit its head")
    refuse(named, ((end - at) % 2 != 0) & (data[np.minimum(end, len(data) - 1)] != 0), "its padding is not zero")
    words_at, words_end = _chunks(data, named, chunks, start, (at + size - start) // 2)
    if is_class:
        owner, *rest = _classes(data, named, at, classes, changed[group])
        run_group, (run_kind, run_gap, run_changed) = group[owner], rest
        tables_each = np.bincount(owner, minlength=len(group))
    else:
        run_group, run_kind, run_gap, run_changed = group, np.zeros_like(group), np.zeros_like(group), changed[group]
        tables_each = np.full(len(group), 2 * CONTEXTS)
    table_at = _tables(data, named, tables, end, tables_each, is_class, most)
    everywhere = np.zeros((2, len(changed)), np.int64)
    everywhere[:, group] = first, classes
    run_end = np.cumsum(run_changed)
    return Parsed(everywhere[0], everywhere[1], run_group, run_kind, run_gap, run_end, table_at, words_at, words_end)


def _u16(data: Bytes, at: I64) -> I64:
    return data[at].astype(np.int64) | data[at + 1].astype(np.int64) << 8


def _chunks(data: Bytes, group: I64, chunks: I64, start: I64, words: I64) -> tuple[I64, I64]:
    """Return where the words of each chunk begin and end; ``start`` is where the groups' words do."""
    owner, number = within(chunks)
    sizes = _u16(data, start[owner] - 2 * chunks[owner] + 2 * number)
    total = np.bincount(owner, sizes, len(group)).astype(np.int64)
    refuse(group, total != words, "the sizes of its chunks do not add up")
    refuse(group[owner], sizes < 2, "a chunk is shorter than its state")
    ends = np.cumsum(sizes)
    words_end = ends + (start // 2 - (np.cumsum(total) - total))[owner]
    return words_end - sizes, words_end


def _classes(data: Bytes, group: I64, at: I64, classes: I64, changed: I64) -> tuple[I64, I64, I64, I64]:
    """Return (place of its group, class, gap parameter, changed cells) of each class that has any."""
    owner, kind = within(classes)
    entry = at[owner] + 4 + 5 * kind
    count = _u16(data, entry) | _u16(data, entry + 2) << 16
    parameter = data[entry + 4].astype(np.int64)
    total = np.bincount(owner, count, len(group)).astype(np.int64)
    refuse(group, total != changed, "its classes do not add up to its changed cells")
    impossible = (parameter >= PARAMETERS) | ((count == 0) & (parameter > 0))
    refuse(group[owner], impossible, "a class has a gap parameter that is not possible")
    some = count > 0
    return owner[some], kind[some], parameter[some], count[some]


def _tables(data: Bytes, group: I64, begin: I64, end: I64, each: I64, is_class: bool, most: int) -> I64:
    """Walk along the stored tables of all groups in step; return where each begins."""
    base = np.cumsum(each) - each
    found = np.empty(int(each.sum()), np.int64)
    at = begin.copy()
    for k in range(int(each.max(initial=0))):
        here = np.flatnonzero(each > k)
        some, own = at[here], group[here]
        refuse(own, some + 2 > end[here], "its tables end too early")
        found[base[here] + k] = some
        first, size = data[some].astype(np.int64), data[some + 1].astype(np.int64)
        stop = some + 2 + (5 * size + 7) // 8
        refuse(own, stop > end[here], "its tables end too early")
        symbols = GAP_TOKENS if not is_class and k < CONTEXTS else most
        refuse(own, (first + size > symbols) | ((size == 0) & (first > 0)), f"a table has more than {symbols} symbols")
        refuse(own, (size == 0) & is_class, "a class with changed cells has an empty table")
        _check_levels(data, own, some + 2, stop, size)
        at[here] = stop
    refuse(group, at != end, "bytes follow its tables")
    return found


def _check_levels(data: Bytes, group: I64, at: I64, stop: I64, size: I64) -> None:
    used = 5 * size - 8 * (stop - at - 1)
    refuse(group, (size > 0) & (data[stop - 1] >> used != 0), "a table's padding is not zero")
    last = 5 * np.maximum(size - 1, 0)
    levels = data[at] & 31, (_u16(data, at + last // 8) >> last % 8) & 31
    refuse(group, (size > 0) & ((levels[0] == 0) | (levels[1] == 0)), "a table's first or last level is zero")
