"""TO WRITE.

In reading order; each module imports only from those below it:

    source  Skills of a host that speaks HTTP: what `GET /skills` and a project's file say of them becomes tools.
    format  What is said between us and a host of skills, as typed data.
"""
