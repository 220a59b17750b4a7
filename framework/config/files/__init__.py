"""Reads the project's folders into snapshots, debounces changes, and writes files.

In reading order; each module imports only from those below it:

    editing   Writes files atomically, on request only if they are still the version that was read.
    scanner   Scans the project's files repeatedly, and opens only those that may have changed.
    snapshot  Snapshots of the project's files, from which generations are built.
"""
