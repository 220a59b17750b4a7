"""Persistence of runs and conversations in SQLite, in a file or in memory, or PostgreSQL.

In reading order; each module imports only from those below it:

    url                 Opens a store by its URL.
    memory              A store in memory, until the process ends: a SQLite database without a file.
    store               The store: each method is one transaction.
    record              Writes one run that this process holds: each step is one transaction.
    pruning             Deletes old data in many small transactions, and shrinks a SQLite file.
    queue               Queued runs: enqueue, claim, start; runs of other processes: take over, release.
    conversations       SQL for conversations and the files in messages: load, list, fork, delete.
    notes               Notes that agents keep across conversations: save, find, list, forget.
    run_links           What outlives runs: triggers, remembered approvals, push receivers, results of test cases.
    limits              Slots of limited agents and models, offers of ready runs, counters of shared budgets.
    usage               Figures of many runs: periods, what the database counts, and the report.
    lists               SQL for lists and counts of runs, what waits where and why, and the processes of the fleet.
    runs                SQL for the rows of one run: its state, figures, events, spans; packed once it has ended.
    processes           Processes that share a store: their leases, and the signals between them.
    database            Connections, threads, transactions and retries for SQLite or PostgreSQL.
    schema              The tables and their indexes, and the migrations to them.
    types               What a store takes and returns: runs, conversations, queries, queued work, signals.
"""
