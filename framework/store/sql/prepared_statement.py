"""SQL statements that are compiled once and passed to the driver directly, for the queries of every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa


class PreparedStatement:
    """A compiled statement with named parameters."""

    def __init__(self, statement: sa.Executable, dialect: sa.Dialect, columns: Sequence[str] | None = None) -> None:
        """Compile a statement. `columns` are the columns of an INSERT."""
        compiled = statement.compile(dialect=dialect, column_keys=columns)  # type: ignore[attr-defined]  # every statement here can be compiled
        self._text = str(compiled)
        self._fixed: dict[str, Any] = {} if columns else dict(compiled.params)
        self._order: Sequence[str] | None = compiled.positiontup

    def execute(self, connection: sa.Connection, row: Mapping[str, Any]) -> Any:
        """Execute the statement and return its first row, or None."""
        cursor = _cursor(connection)
        cursor.execute(self._text, self._parameters(row))
        return cursor.fetchone() if cursor.description else None

    def fetch_all(self, connection: sa.Connection, row: Mapping[str, Any]) -> Sequence[Any]:
        """Execute the statement and return all rows."""
        cursor = _cursor(connection)
        cursor.execute(self._text, self._parameters(row))
        rows: Sequence[Any] = cursor.fetchall()
        return rows

    def execute_many(self, connection: sa.Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        """Execute the statement once per row of parameters."""
        if len(rows) == 1:
            _cursor(connection).execute(self._text, self._parameters(rows[0]))
        elif rows:
            _cursor(connection).executemany(self._text, [self._parameters(row) for row in rows])

    def _parameters(self, row: Mapping[str, Any]) -> Any:
        values = {**self._fixed, **row} if self._fixed else row
        return values if self._order is None else [values[name] for name in self._order]


def _cursor(connection: sa.Connection) -> Any:
    driver = connection.connection.dbapi_connection
    assert driver is not None
    return driver.cursor()
