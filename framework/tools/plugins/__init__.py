"""Plugin files: Python files with tools, hooks and executors, reloaded while the process runs.

In reading order; each module imports only from those below it:

    trial          Loads changed plugins in a child process first, to detect code that never returns.
    loader         Loads plugin files, each as a fresh module, and sets them up with the generations that use them.
"""
