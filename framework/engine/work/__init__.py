"""What delivers queued and interrupted runs to the processes that execute them.

In reading order; each module imports only from those below it:

    choice         Opens the work source that the settings of a server process ask for.
    procrastinate  Delivers runs to any number of processes through Procrastinate, in PostgreSQL.
    source         The protocol between what delivers runs, and the process that executes them.
"""
