"""Plugin files: Python files with tools, hooks and executors, reloaded while the process runs.

In reading order; each module imports only from those below it:

    trial          Loads a plugin file in a child process first, to detect code that never returns.
    trial_process  The child process that loads one plugin file. Started by `trial`, never imported.
    loader         Loads plugin files, each as a fresh module, from bytes already in memory.
    modules        In-memory packages: the modules of one load of a plugin file and its helpers.
"""
