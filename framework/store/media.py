"""SQL for files in messages: save, load, delete. Each function works within the transaction of its connection."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import sqlalchemy as sa

from framework.store.lists import owner_conditions
from framework.store.schema import insert_into, media, run_media, runs
from framework.store.types import RunQuery

UNUSED_SECONDS = 3600.0
"""A file that no run refers to is deleted this long after it was saved: its run may be about to begin."""


def insert_media(connection: sa.Connection, run_id: str, files: Mapping[str, bytes], now: float) -> None:
    """Save files by digest, and that the run refers to them."""
    for digest, body in sorted(files.items()):  # in one order, so that two transactions do not wait for each other
        row = insert_into(media, connection.dialect).values(digest=digest, body=body, used_at=now)
        connection.execute(row.on_conflict_do_update(index_elements=["digest"], set_={"used_at": row.excluded.used_at}))
        link = insert_into(run_media, connection.dialect).values(run_id=run_id, digest=digest)
        connection.execute(link.on_conflict_do_nothing())


def select_media(connection: sa.Connection, digests: Collection[str], of: RunQuery | None) -> dict[str, bytes]:
    """Return the stored files with these digests, by digest; `of`: those that a run with this owner refers to."""
    select = sa.select(media.c.digest, media.c.body).where(media.c.digest.in_(sorted(digests)))
    if of is not None:
        refers = (run_media.c.digest == media.c.digest, run_media.c.run_id == runs.c.id)
        select = select.where(sa.exists().where(*refers, *owner_conditions(of)))
    return {digest: bytes(body) for digest, body in connection.execute(select)}


def delete_media_of(connection: sa.Connection, run_ids: Collection[str]) -> int:
    """Delete the references of runs, and the files that no other run refers to; return the number of these files."""
    digests = set(connection.execute(sa.select(run_media.c.digest).where(run_media.c.run_id.in_(run_ids))).scalars())
    if not digests:
        return 0
    connection.execute(sa.delete(run_media).where(run_media.c.run_id.in_(run_ids)))
    return _delete_unreferenced(connection, media.c.digest.in_(sorted(digests)))


def delete_unused_media(connection: sa.Connection, now: float) -> int:
    """Delete files that were saved for a run that never began, because its process ended; return their number."""
    is_old = media.c.used_at < now - UNUSED_SECONDS
    old = sa.select(media.c.digest).where(is_old)
    began = sa.exists().where(runs.c.id == run_media.c.run_id)
    connection.execute(sa.delete(run_media).where(run_media.c.digest.in_(old), ~began))
    return _delete_unreferenced(connection, is_old)


def _delete_unreferenced(connection: sa.Connection, condition: sa.ColumnElement[bool]) -> int:
    # Locked first: the DELETE then sees references by transactions that were committed while this one waited.
    connection.execute(sa.select(media.c.digest).where(condition).order_by(media.c.digest).with_for_update())
    is_used = sa.exists().where(run_media.c.digest == media.c.digest)
    return connection.execute(sa.delete(media).where(condition, ~is_used)).rowcount
