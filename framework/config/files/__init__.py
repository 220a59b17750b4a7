"""Reads the project's folders into snapshots and debounces changes.

In reading order; each module imports only from those below it:

    debounce  Decides when changed files take effect: after a quiet period that depends on the change.
    snapshot  Takes snapshots of the project's files; unchanged files are not read again.
    reading   Finds the relevant files below a folder and reads each one consistently.
"""
