"""The durable store: SQLAlchemy Core over SQLite or PostgreSQL, with the same code for both.

In reading order; each module imports only from those below it:

    store               The durable store: each method is one transaction.
    record              Writes one run that this process holds, a transaction per step.
    queue               SQL for queued runs: add, claim, begin.
    conversations       SQL for conversations: load, list, delete, prune.
    media               SQL for files in messages: save, load, delete.
    runs                SQL for runs: insert, take over, load, list.
    run_lists           SQL for lists of runs: filters and pages.
    budgets             SQL for the counters of shared budgets: add, load, delete.
    packing             Compresses the rows of an ended run into one.
    owners              Which process holds a run, according to its row.
    shrinking           Returns free pages of a SQLite file to the file system.
    database            Connections, threads, transactions and retries for SQLite or PostgreSQL.
    engines             Creates SQLAlchemy engines from a store's URL.
    leases              Names the holder of a run, and detects whether it is still alive.
    schema              The tables of a store, and the migrations between their versions.
    texts               Texts as columns contain them, and the ids of conversations with their tenant.
    span_rows           JSON encoding of a run's spans.
    state_rows          Splits a run's state into rows, so that a step writes only what has changed.
    prepared_statement  SQL statements that are compiled once, for the queries of every step.
"""
