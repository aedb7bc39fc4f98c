"""Table: the rows of one kind in a run's state, in the order of the log: columns of numbers, and packed JSON.

The numbers are what searches and rules look at. The JSON is what a row says in full: some hundred bytes where an object
would take thousands; it is read when somebody asks for the row. Rows are only added, so that all copies of a table
share them; each copy knows how many are its own, and which of them are dead.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from pulse_registry.errors import CorruptObject
from pulse_registry.log.block import FULL_BYTES, ROWS, Block, packed
from pulse_registry.log.cow import CowObject
from pulse_registry.log.dead_rows import DeadRows
from pulse_registry.log.row_index import Numbers, RowIndex
from pulse_schemas import Schema
from pulse_schemas.base import faults

T = TypeVar("T", bound=Schema)
_OPEN: Final = 8
"""Blocks whose lines are kept once they were read."""
_SHORT: Final = ROWS // 4
"""Rows that make a block of their own before one that is kept as it is: of fewer there would be too many blocks."""
_SPARE: Final = 16
"""Columns are grown by one part in so many: by more they would take much memory that nobody needs."""


@dataclass(frozen=True)
class Kind(Generic[T]):
    """A kind of row.

    Attributes:
        name: what rows of it are called.
        schema: of a row's JSON.
        columns: names.
        numbers: of a row, one for each column.
        violation: in words, what no row may say; None: nothing wrong.
    """

    name: str
    schema: type[T]
    columns: tuple[str, ...]
    numbers: Callable[[T], tuple[int, ...]]
    violation: Callable[[T], str | None] = lambda _: None


class _Lines(NamedTuple, Generic[T]):
    """The JSON of the rows from ``first`` on, and those of them that somebody asked for."""

    first: int
    lines: list[bytes]
    items: dict[int, T]


class _Store(Generic[T]):
    """Rows that copies of a table share, written past what any of them looks at."""

    def __init__(self, kind: Kind[T], capacity: int) -> None:
        self.kind = kind
        self.numbers = np.empty((len(kind.columns) + 1, capacity), np.int64)  # the last one: the rows' ids
        self.count = 0
        self.blocks: list[Block] = []
        self.ends: list[int] = []  # the row after each block's last
        self.tail = _Lines[T](
            0, [], {}
        )  # rows in no block yet; another one takes its place, so that readers keep theirs
        self.lock = threading.Lock()
        self._opened: dict[int, _Lines[T]] = {}
        self.indices = {name: RowIndex(self._column_of(number)) for number, name in enumerate(kind.columns)}

    def add_numbers(self, numbers: tuple[int, ...]) -> None:
        """Add a row's columns and its id."""
        if self.count == self.numbers.shape[1]:
            grown = np.empty((len(self.numbers), _with_spare(self.count)), np.int64)
            grown[:, : self.count] = self.numbers
            self.numbers = grown
        self.numbers[:, self.count] = numbers

    def add_line(self, line: bytes, item: T | None = None) -> None:
        """Add a row's JSON, and what it says where that is known."""
        first, lines, items = self.tail
        if item is not None:
            items[first + len(lines)] = item
        lines.append(line)
        if len(lines) == ROWS or sum(map(len, lines)) >= FULL_BYTES:
            self.close_tail()

    def add_block(self, block: Block) -> None:
        """Add the JSON of rows, while no others wait for their block."""
        self.blocks.append(block)
        self.ends.append((self.ends[-1] if self.ends else 0) + block.rows)
        self.tail = _Lines(self.ends[-1], [], {})

    def close_tail(self) -> None:
        """Make the rows that wait for their block one."""
        if self.tail.lines:
            self._keep_open(len(self.blocks), self.tail)
            self.add_block(Block.of(self.tail.lines))

    def row(self, row: int) -> T:
        """Return what a row says."""
        found = self.lines_with(row)
        item = found.items.get(row)
        if item is None:
            item = found.items[row] = self._parsed(row, found.lines[row - found.first])
        return item

    def glance(self, row: int) -> T:
        """Return what a row says, and keep no object of it: for who goes through all rows."""
        found = self.lines_with(row)
        return found.items.get(row) or self._parsed(row, found.lines[row - found.first])

    def lines_with(self, row: int) -> _Lines[T]:
        """Return the JSON of some rows, of which ``row`` is one."""
        tail = self.tail
        if row >= tail.first:
            return tail
        number = bisect_right(self.ends, row)
        with self.lock:
            found = self._opened.pop(number, None)
            if found is None:
                block = self.blocks[number]
                found = _Lines(self.ends[number] - block.rows, block.lines(), {})
            self._keep_open(number, found)
        return found

    def _keep_open(self, number: int, lines: _Lines[T]) -> None:
        self._opened[number] = lines  # the last one used is the last one to go
        if len(self._opened) > _OPEN:
            del self._opened[next(iter(self._opened))]

    def _parsed(self, row: int, line: bytes) -> T:
        number = bisect_right(self.ends, row)
        source = self.blocks[number].source if number < len(self.blocks) else "the log's state"
        try:
            item = self.kind.schema.model_validate_json(line)
        except ValidationError as error:
            raise CorruptObject(f"{source}: one of its {self.kind.name} can't be read: {faults(error)}") from None
        if self.kind.numbers(item) != tuple(self.numbers[:-1, row].tolist()):
            raise CorruptObject(f"{source}: one of its {self.kind.name} is not what its columns say: {line[:200]!r}")
        wrong = self.kind.violation(item)
        if wrong is not None:
            raise CorruptObject(f"{source}: one of its {self.kind.name} is not valid: {wrong}")
        return item

    def _column_of(self, number: int) -> Callable[[], Numbers]:
        return lambda: self.numbers[number, : self.count]


class Table(CowObject, Generic[T]):
    """The rows of one kind; a copy costs nothing, and goes on by itself.

    Attributes:
        kind: of its rows.
        next_id: the id of the row that is added next. A row keeps its id for good, and its number until dead rows are
            let go of.
    """

    def __init__(self, kind: Kind[T]) -> None:
        """Begin without rows."""
        self.kind = kind
        self.next_id = 0
        self._store = _Store[T](kind, 0)
        self._count = 0
        self._nbytes = 0
        self._dead = DeadRows()

    @classmethod
    def of(
        cls,
        kind: Kind[T],
        numbers: Numbers,
        blocks: Iterable[Block],
        dead: npt.NDArray[np.bool_] | None = None,
        ids: Numbers | None = None,
    ) -> Table[T]:
        """Return the table of rows that were stored. No row is read.

        Args:
            kind: of the rows.
            numbers: the columns, in the order of the kind's, each of as many rows.
            blocks: the rows' JSON, in the order of the rows.
            dead: which rows are; None: none.
            ids: the rows' ids, which rise; None: 0, 1, 2 and so on.

        Raises:
            CorruptObject: the blocks have more rows than the columns, or fewer, or are damaged.
        """
        table = cls(kind)
        rows = numbers.shape[1]
        store = table._store = _Store(kind, _with_spare(rows))
        store.numbers[:-1, :rows] = numbers
        store.numbers[-1, :rows] = np.arange(rows) if ids is None else ids
        for block in blocks:
            table._nbytes += block.nbytes
            store.add_block(block)
        if (store.ends[-1] if store.ends else 0) != rows:
            raise CorruptObject(f"the blocks of {kind.name} have {store.ends[-1:]} rows, and the columns {rows}")
        store.count = table._count = rows
        table.next_id = int(store.numbers[-1, rows - 1]) + 1 if rows else 0
        if dead is not None:
            table._dead = DeadRows.of(dead)
        return table

    @classmethod
    def holding(cls, kind: Kind[T], items: Sequence[T]) -> Table[T]:
        """Return the table of rows that are at hand, packed."""
        numbers = np.array([kind.numbers(item) for item in items], np.int64).reshape(len(items), len(kind.columns))
        return cls.of(kind, numbers.T, packed(item.canonical() for item in items))

    def __len__(self) -> int:
        """Rows, dead ones too."""
        return self._count

    @property
    def live(self) -> int:
        """Rows that are not dead."""
        return self._count - self._dead.count

    @property
    def alive(self) -> npt.NDArray[np.bool_]:
        """Which rows are not dead."""
        return self._dead.alive(self._count)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows' JSON, with a separator each; of dead ones too, until they are let go of."""
        return self._nbytes

    @property
    def numbers(self) -> Numbers:
        """The columns, in the order of the kind's; not to be written to."""
        return self._store.numbers[:-1, : self._count]

    @property
    def ids(self) -> Numbers:
        """The rows' ids, rising; not to be written to."""
        return self._store.numbers[-1, : self._count]

    def column(self, name: str) -> Numbers:
        """Return one column; not to be written to."""
        return self._store.numbers[self.kind.columns.index(name), : self._count]

    def __iter__(self) -> Iterator[T]:
        """Yield the rows that are not dead."""
        return map(self._store.glance, np.flatnonzero(self.alive).tolist())

    def row(self, row: int) -> T:
        """Return a row, dead or not.

        Raises:
            CorruptObject: it was stored, and is damaged, or not what its columns say.
        """
        return self._store.row(row)

    def glance(self, row: int) -> T:
        """Return a row as ``row`` does, and keep no object of it: for who goes through many."""
        return self._store.glance(row)

    def rows(self, rows: Iterable[int]) -> Iterator[T]:
        """Yield some rows; see ``row``."""
        return map(self._store.row, rows)

    def is_dead(self, row: int) -> bool:
        """Tell whether a row was dropped."""
        return row in self._dead

    def where(self, name: str, number: int) -> list[int]:
        """Return the rows that are not dead and have ``number`` in a column, rising."""
        return self.between(name, number, number)

    def between(self, name: str, first: int, last: int) -> list[int]:
        """Return the rows that are not dead and have a number from ``first`` to ``last`` in a column, rising."""
        found = self._store.indices[name].between(first, last)
        count, dead = self._count, self._dead
        if len(found) > ROWS and dead.count:
            alive = self.alive.data
            return [row for row in found if row < count and alive[row]]
        return [row for row in found if row < count and row not in dead]

    def saying(self, text: bytes) -> Iterator[int]:
        """Yield the rows that are not dead and have ``text`` in their JSON, falling; reads none of them."""
        row = self._count - 1
        while row >= 0:
            first, lines, _ = self._store.lines_with(row)
            for number in range(row, first - 1, -1):
                if text in lines[number - first] and number not in self._dead:
                    yield number
            row = first - 1

    def append(self, item: T) -> None:
        """Add a row."""
        line = item.canonical()
        numbers = (*self.kind.numbers(item), self.next_id)
        if not self._append(self._store, numbers, line, item):  # another copy has gone on from here
            self._store = self._with_rows(np.arange(self._count))
            self._append(self._store, numbers, line, item)
        self._count += 1
        self._nbytes += len(line) + 1
        self.next_id += 1

    def extend(self, items: Iterable[T]) -> None:
        """Add rows."""
        for item in items:
            self.append(item)

    def drop(self, rows: Collection[int]) -> None:
        """Take rows for dead, of which none is dead yet; where most are, they are let go of, and others move up."""
        if not rows:
            return
        self._dead = self._dead.and_(rows, self._count)
        if 2 * self._dead.count > self._count:
            self._store = self._with_rows(np.flatnonzero(self.alive))
            self._count, self._dead = self._store.count, DeadRows()
            self._nbytes = sum(block.nbytes for block in self._store.blocks)
            self._nbytes += sum(len(line) + 1 for line in self._store.tail.lines)

    def blocks(self, first: int, last: int) -> Iterator[Block]:
        """Yield the JSON of the rows from ``first`` up to ``last``, which is not among them.

        Blocks of which all rows are among them are those that are kept; the rest is in blocks made for it.
        """
        store = self._store
        while first < last:
            number = bisect_right(store.ends, first)
            begins = 0 if number == 0 else store.ends[number - 1]
            if number < len(store.ends) and begins == first and store.ends[number] <= last:
                yield store.blocks[number]
                first = store.ends[number]
                continue
            until = min(last, store.ends[number] if number < len(store.ends) else last)
            found = store.lines_with(first)
            yield Block.of(found.lines[first - found.first : until - found.first])
            first = until

    def _append(self, store: _Store[T], numbers: tuple[int, ...], line: bytes, item: T) -> bool:
        with store.lock:
            if store.count != self._count:
                return False
            store.add_numbers(numbers)
            store.add_line(line, item)
            store.count += 1
            return True

    def _with_rows(self, kept: npt.NDArray[np.intp]) -> _Store[T]:
        """Return some rows in columns and blocks of their own: blocks of which all rows are kept, as they are."""
        old, new = self._store, _Store[T](self.kind, _with_spare(len(kept)))
        new.numbers[:, : len(kept)] = old.numbers[:, kept]
        new.count = len(kept)
        tail = old.tail  # before the blocks, which then have all rows before it
        first = 0
        for block, end in zip(old.blocks, old.ends, strict=False):
            if end > tail.first:
                break
            wanted = kept[slice(*np.searchsorted(kept, (first, end)))] - first
            if len(wanted) == block.rows and (not new.tail.lines or len(new.tail.lines) >= _SHORT):
                new.close_tail()
                new.add_block(block)
            elif len(wanted):
                lines = block.lines()
                for row in wanted.tolist():
                    new.add_line(lines[row])
            first = end
        for row in kept[np.searchsorted(kept, tail.first) :].tolist():
            new.add_line(tail.lines[row - tail.first], tail.items.get(row))
        return new


def _with_spare(rows: int) -> int:
    return rows + rows // _SPARE + ROWS
