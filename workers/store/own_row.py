"""One row by its id, for the key that may see it."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from workers.store.ids import looks_like_id


def own_row(
    conn: Connection,
    table: sa.Table,
    row_id: str,
    key_id: str | None,
    *conditions: sa.ColumnElement[bool],
    for_update: bool = False,
) -> sa.Row[Any] | None:
    """The row that has the id, is of the key (None: of any) and meets the conditions, or None.

    What cannot be an id never reaches the database.
    """
    if not looks_like_id(row_id):
        return None
    query = sa.select(table).where(table.c.id == row_id, *conditions)
    if key_id is not None:
        query = query.where(table.c.key_id == key_id)
    return conn.execute(query.with_for_update() if for_update else query).one_or_none()
