"""CSV text as columns. A column is checked as a whole; the line of a bad cell is searched later."""

import csv
import io
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from coddl.core.columns import BoolColumn, FloatColumn, IntColumn
from coddl.core.errors import UserError

_reader = partial(csv.reader, skipinitialspace=True, strict=True)
SHOWN_CHARS = 60  # of an offending value


class Constraint(NamedTuple):
    """What the numbers of a column must be, and what to write instead."""

    ok: Callable[[FloatColumn], BoolColumn]
    must: str
    try_: str


@dataclass(frozen=True, eq=False)
class Cells:
    """The cells of a file by column. Row i of every column is the i-th line that is not blank."""

    what: str  # what a user can't have if a cell is bad
    text: str
    columns: dict[str, Sequence[str]]

    def numbers(self, name: str, constraint: Constraint) -> FloatColumn:
        """A column of numbers that all satisfy the constraint."""
        return self._numbers(name, self.columns[name], constraint)

    def whole(self, name: str, constraint: Constraint) -> IntColumn:
        """A column of numbers that all satisfy the constraint, which requires whole numbers."""
        return self.numbers(name, constraint).astype(np.int64)

    def whole_or(self, name: str, constraint: Constraint, default: IntColumn) -> IntColumn:
        """A column of whole numbers; the default fills empty cells and a missing column."""
        if name not in self.columns:
            return default
        return self.numbers_or(name, constraint, default).astype(np.int64)

    def numbers_or(
        self, name: str, constraint: Constraint, default: IntColumn | float
    ) -> FloatColumn:
        """A column of numbers, with the default for an empty cell."""
        cells = self.columns[name]
        blank = np.array([cell == "" for cell in cells])
        filled = [cell or "1" for cell in cells]
        return np.where(blank, default, self._numbers(name, filled, constraint))

    def indices(self, name: str, among: Collection[str], must: str, try_: str) -> IntColumn:
        """A column of names as their indices in `among`."""
        place = {known: at for at, known in enumerate(among)}
        found = list(map(place.get, self.columns[name]))
        if None in found:
            raise self.bad(found.index(None), name, must, try_)
        return np.array(found, np.int64)

    def bad(self, row: int, name: str, must: str, try_: str) -> UserError:
        """The error for one cell."""
        value = shown(self.columns[name][row])
        because = f"line {self.line_of(row)}: {name} is {value} and must {must}"
        return UserError(self.what, because, try_)

    def line_of(self, row: int) -> int:
        """The line, from 1, on which a row ends; -1 is the header's row."""
        reader = _reader(io.StringIO(self.text, newline=""))
        for at, _ in enumerate(cells for cells in reader if not _is_blank(cells)):
            if at == row + 1:  # the header is the first
                break
        return reader.line_num

    def lines(self) -> IntColumn:
        """The line of every row."""
        rows = len(next(iter(self.columns.values())))
        if self.text.strip("\n").count("\n") == rows:  # only the header and one line per row
            return np.arange(2, rows + 2)
        reader = _reader(io.StringIO(self.text, newline=""))
        return np.array([reader.line_num for cells in reader if not _is_blank(cells)][1:])

    def _numbers(self, name: str, cells: Sequence[str], constraint: Constraint) -> FloatColumn:
        try:
            numbers = np.fromiter(map(float, cells), np.float64, len(cells))
        except ValueError:
            row = next(at for at, cell in enumerate(cells) if not _is_number(cell))
            raise self.bad(row, name, constraint.must, constraint.try_) from None
        ok = constraint.ok(numbers)
        if not ok.all():
            raise self.bad(int(np.argmin(ok)), name, constraint.must, constraint.try_)
        return numbers


def cells_of(
    text: str, what: str, required: Collection[str], optional: Collection[str] = ()
) -> Cells:
    """Split the text, whose first line names the columns in any order."""
    nothing = Cells(what, text, {})
    columns: Sequence[Sequence[str]] | None = _plain_columns(text)
    rows = _rows(text, what) if columns is None else []
    header = [column[0] for column in columns] if columns else [*rows[:1], []][0]
    _check_header(header, nothing, required, optional)
    if columns is None:
        _check_widths(rows, nothing)
        columns = list(zip(*rows, strict=True))
    if len(columns[0]) == 1:
        raise UserError(what, "it has a header and no data", "at least one line of data")
    return Cells(what, text, {column[0]: column[1:] for column in columns})


def shown(value: str) -> str:
    """A value as it is quoted in a message: on one line, and not too long."""
    cut = value if len(value) <= SHOWN_CHARS else value[:SHOWN_CHARS] + "…"
    return '"' + "".join(c if c.isprintable() else repr(c)[1:-1] for c in cut) + '"'


def listed(names: Collection[str], most: int = 20) -> str:
    """Names for a message, the first few of many."""
    return ", ".join(list(names)[:most]) + (", …" if len(names) > most else "")


def _plain_columns(text: str) -> list[list[str]] | None:
    """The columns of text without quotes, spaces and uneven lines; None for any other.

    This is what files mostly are, and several times as fast as making a row of every line.
    """
    text = text.replace("\r\n", "\n")
    if any(mark in text for mark in '" \t\r'):
        return None
    lines = text.strip("\n").split("\n")
    widths = {line.count(",") + 1 for line in lines}
    if len(widths) > 1 or max(map(len, lines)) > csv.field_size_limit():
        return None
    cells, width = ",".join(lines).split(","), widths.pop()
    return [cells[at::width] for at in range(width)]


def _rows(text: str, what: str) -> list[list[str]]:
    """The rows of any text, without blank lines and without spaces around cells."""
    reader = _reader(io.StringIO(text, newline=""))
    try:
        return [[cell.strip() for cell in row] for row in reader if not _is_blank(row)]
    except csv.Error as error:
        raise UserError(
            what,
            f"line {reader.line_num}: it is not comma-separated: {error}",
            "quotes around whole values, or no quotes",
        ) from None


def _is_blank(cells: Sequence[str]) -> bool:
    return not cells or (len(cells) == 1 and not cells[0].strip())


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _check_header(
    header: Sequence[str], cells: Cells, required: Collection[str], optional: Collection[str]
) -> None:
    repeated = [name for name in header if header.count(name) > 1]
    missing = [name for name in required if name not in header]
    unknown = [name for name in header if name not in required and name not in optional]
    if missing:
        problem = f"there is no column {listed(missing)}"
    elif unknown:
        problem = f"column {listed([shown(name) for name in unknown])} is unknown"
    elif repeated:
        problem = f"column {shown(repeated[0])} appears twice"
    else:
        return
    try_ = f"the columns {', '.join(required)}, separated by commas"
    if optional:
        try_ += f"; optional: {', '.join(optional)}"
    line = f"line {cells.line_of(-1)} reads {shown(','.join(header))}"
    raise UserError(cells.what, f"{line}: {problem}", try_)


def _check_widths(rows: Sequence[Sequence[str]], cells: Cells) -> None:
    header = rows[0]
    for at, row in enumerate(rows[1:]):
        if len(row) != len(header):
            raise UserError(
                cells.what,
                f"line {cells.line_of(at)}: {shown(','.join(row))} has {len(row)} "
                f"value{'s' * (len(row) != 1)} for {len(header)} columns",
                f"one value for each of {','.join(header)}",
            )
