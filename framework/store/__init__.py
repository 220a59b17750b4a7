"""Persistence of runs and conversations: in memory, or in SQLite or PostgreSQL.

In reading order; each module imports only from those below it:

    url             Opens a store by its URL.
    sql             The durable store, in SQLite or PostgreSQL.
    memory          A store that keeps runs and conversations in memory, until the process ends.
    protocol        The protocol of a store for runs and conversations, and the types it uses.
    database_files  The files of a store's database, from its URL. Tools must not read or write them.
"""
