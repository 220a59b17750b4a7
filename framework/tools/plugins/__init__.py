"""Plugin files: Python files with tools, hooks and executors, reloaded while the process runs.

In reading order; each module imports only from those below it:

    lifecycle      Calls `setup` before a plugin is first used and `teardown` after its last use.
    trial          Loads a plugin file in a child process first, to detect code that never returns.
    trial_process  The child process that loads one plugin file. Started by `trial`, never imported.
    loader         Loads plugin files, each as a fresh module, from bytes already in memory.
    errors         Converts exceptions of plugin code to Problems with file, line and hint.
    modules        In-memory packages: the modules of one load of a plugin file and its helpers.
    helper_files   Finds the files that a plugin consists of: the file itself and the helpers it imports.
"""
