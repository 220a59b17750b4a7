"""Persistence of runs and conversations: in memory, or in SQLite or PostgreSQL.

In reading order; each module imports only from those below it:

    url             Opens a store by its URL.
    sql             The durable store, in SQLite or PostgreSQL.
    memory          A store that keeps runs and conversations in memory, until the process ends.
    memory_tables   The files, budget counters and queue of a store in memory.
    memory_lists    Lists of the runs and conversations of a store in memory.
    unstored        The record of a run that is not stored.
    queue_rules     Rules of the queue that every store applies: limits, idempotency, and their errors.
    protocol        The protocol of a store for runs and conversations, and the types it uses.
    paging          Cursors of lists: positions that stay valid while rows are added or removed.
    database_files  The files of a store's database, from its URL. Tools must not read or write them.
"""
