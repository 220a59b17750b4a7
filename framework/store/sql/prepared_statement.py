"""SQL statements that are compiled once a store and passed to the driver directly, for the queries of every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import sqlalchemy as sa


def driver_cursor(connection: sa.Connection) -> Any:
    """Return a new cursor of the driver, for prepared statements in the transaction of the connection."""
    driver = connection.connection.dbapi_connection
    assert driver is not None
    return driver.cursor()


class PreparedStatement:
    """A statement with named parameters. It is compiled when it is first executed, in a thread of the database."""

    def __init__(self, statement: sa.Executable, dialect: sa.Dialect) -> None:
        self._statement, self._dialect = statement, dialect

    @cached_property
    def _compiled(self) -> _Compiled:
        compiled = self._statement.compile(dialect=self._dialect)  # type: ignore[attr-defined]  # every statement here can be compiled
        return _Compiled(str(compiled), dict(compiled.params), compiled.positiontup)

    def execute(self, cursor: Any, row: Mapping[str, Any]) -> Any:
        """Execute the statement and return its first row, or None."""
        compiled = self._compiled
        cursor.execute(compiled.text, compiled.parameters(row))
        return cursor.fetchone() if cursor.description else None

    def fetch_all(self, cursor: Any, row: Mapping[str, Any]) -> Sequence[Any]:
        """Execute the statement and return all rows."""
        compiled = self._compiled
        cursor.execute(compiled.text, compiled.parameters(row))
        rows: Sequence[Any] = cursor.fetchall()
        return rows


@dataclass(frozen=True, slots=True)
class _Compiled:
    text: str
    fixed: Mapping[str, Any]
    """Values that the statement itself contains, by parameter."""
    order: Sequence[str] | None
    """The parameters by position; None if the driver takes them by name."""

    def parameters(self, row: Mapping[str, Any]) -> Any:
        values = {**self.fixed, **row}
        return values if self.order is None else [values[name] for name in self.order]


class PreparedInsert:
    """An INSERT of whole rows: tuples of values in the order of the table's columns. It is compiled when first used."""

    def __init__(self, insert: sa.Insert, dialect: sa.Dialect) -> None:
        self._insert, self._dialect = insert, dialect
        self._columns = [column.name for column in insert.table.columns]

    @cached_property
    def _compiled(self) -> tuple[str, bool]:
        """The text, and whether the driver takes parameters by name."""
        compiled = self._insert.compile(dialect=self._dialect, column_keys=self._columns)
        assert compiled.positiontup in (None, self._columns)
        return str(compiled), compiled.positiontup is None

    def execute(self, cursor: Any, rows: Sequence[Sequence[Any]]) -> None:
        """Insert the rows, if there are any."""
        if not rows:
            return
        text, by_name = self._compiled
        parameters: Sequence[Any] = [dict(zip(self._columns, row, strict=True)) for row in rows] if by_name else rows
        if len(rows) == 1:
            cursor.execute(text, parameters[0])
        else:
            cursor.executemany(text, parameters)
