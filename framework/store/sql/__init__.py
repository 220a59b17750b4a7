"""The store: SQLAlchemy Core over SQLite, in a file or in memory, or PostgreSQL, with the same code for all.

In reading order; each module imports only from those below it:

    store               The store: each method is one transaction.
    pruning             Deletes old data in many small transactions.
    reader              What a store reads: runs, their events and traces, lists, figures.
    claims              The queued runs that this process has claimed.
    sweep               SQL that finds runs that need a process, and offers them again.
    takeover            SQL for runs that change hands: take over, save decisions, release for others.
    record              Writes one run that this process holds, a transaction per step.
    queue               SQL for queued runs: add, claim, begin.
    conversations       SQL for conversations: load, list, delete, prune.
    media               SQL for files in messages: save, load, delete.
    runs                SQL for runs: insert, load.
    usage               SQL for figures of many runs.
    backlog             SQL for the runs that have not ended: how many wait, where and why.
    run_lists           SQL for lists of runs: filters and pages.
    budgets             SQL for the counters of shared budgets: add, load, delete.
    slots               SQL for limits on runs in progress: slots, and the runs that wait for one.
    ranks               SQL for the rank of a queued run, so that tenants begin runs in turn.
    run_figures         SQL for the figures of single runs: tokens, cost, active time, tool calls, models.
    offering            SQL that makes runs ready or releases them, and offers them to processes.
    packing             Compresses the rows of an ended run into one.
    owners              Which process holds a run, according to its row and that of the process.
    processes           SQL for processes: their leases, and the runs that they hold.
    signals             Signals through PostgreSQL: NOTIFY, and the one connection of a process that listens.
    database            Connections, threads, transactions and retries for SQLite or PostgreSQL.
    connections         Executes transactions: in threads with a connection each, or at once for a store in memory.
    engines             Creates SQLAlchemy engines from a store's URL, and begins their transactions.
    leases              Names the holder of a run, and detects whether it is still alive.
    migrations          The migrations between the versions of the tables.
    texts               Texts as columns contain them, and the ids of conversations with their tenant.
    schema              The tables and indexes of a store.
    upserts             INSERT statements with ON CONFLICT, for SQLite or PostgreSQL.
    state_rows          Splits a run's state into rows, so that a step writes only what has changed.
"""
