"""Persistence of runs and conversations: in memory, or in SQLite or PostgreSQL.

In reading order; each module imports only from those below it:

    url                 Opens a store by its URL.
    memory              A store in memory, until the process ends: a SQLite database without a file.
    sql                 The store in a database: SQLite or PostgreSQL.
    span_rows           JSON encoding of a run's spans.
    unstored            The record of a run that is not stored.
    fleet               Reports who executes the runs of a store, and what waits where and why.
    queue_rules         Rules of the queue that every store applies: limits, idempotency, and their errors.
    protocol            The protocol of a store for runs and conversations, and the types it uses.
    signals             Signals between the processes of a store: hints to look at it now, and texts in progress.
    run_record          The record of a run: the right to write it.
    work                Runs that wait for a process, and the processes that execute runs.
    usage               Figures of many runs: what a store counts, and the report that is made of it.
    period              A period of time, divided into steps of local clock time, such as days.
    conversation_lists  Entries and filters of lists of conversations.
    paging              Cursors of lists: positions that stay valid while rows are added or removed.
    clock               The time by which everything in a store expires or is old.
    database_files      The files of a store's database, from its URL. Tools must not read or write them.
"""
