"""SQL statements that are compiled once a store and passed to the driver directly, for the queries of every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import sqlalchemy as sa


class PreparedStatement:
    """A statement with named parameters. It is compiled when it is first executed, in a thread of the database."""

    def __init__(self, statement: sa.Executable, dialect: sa.Dialect, columns: Sequence[str] | None = None) -> None:
        """Prepare a statement. `columns` are the columns of an INSERT."""
        self._statement, self._dialect, self._columns = statement, dialect, columns

    @cached_property
    def _compiled(self) -> _Compiled:
        compiled = self._statement.compile(dialect=self._dialect, column_keys=self._columns)  # type: ignore[attr-defined]  # every statement here can be compiled
        return _Compiled(str(compiled), {} if self._columns else dict(compiled.params), compiled.positiontup)

    def execute(self, connection: sa.Connection, row: Mapping[str, Any]) -> Any:
        """Execute the statement and return its first row, or None."""
        compiled, cursor = self._compiled, _cursor(connection)
        cursor.execute(compiled.text, compiled.parameters(row))
        return cursor.fetchone() if cursor.description else None

    def fetch_all(self, connection: sa.Connection, row: Mapping[str, Any]) -> Sequence[Any]:
        """Execute the statement and return all rows."""
        compiled, cursor = self._compiled, _cursor(connection)
        cursor.execute(compiled.text, compiled.parameters(row))
        rows: Sequence[Any] = cursor.fetchall()
        return rows

    def execute_many(self, connection: sa.Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        """Execute the statement once per row of parameters."""
        if not rows:
            return
        compiled, cursor = self._compiled, _cursor(connection)
        if len(rows) == 1:
            cursor.execute(compiled.text, compiled.parameters(rows[0]))
        else:
            cursor.executemany(compiled.text, [compiled.parameters(row) for row in rows])


@dataclass(frozen=True, slots=True)
class _Compiled:
    text: str
    fixed: Mapping[str, Any]
    """Values that the statement itself contains, by parameter."""
    order: Sequence[str] | None
    """The parameters by position; None if the driver takes them by name."""

    def parameters(self, row: Mapping[str, Any]) -> Any:
        values = {**self.fixed, **row} if self.fixed else row
        return values if self.order is None else [values[name] for name in self.order]


def _cursor(connection: sa.Connection) -> Any:
    driver = connection.connection.dbapi_connection
    assert driver is not None
    return driver.cursor()
