"""TO WRITE.

In reading order; each module imports only from those below it:

    lifecycle      What plugins set up before they are used, and tear down afterwards.
    trial          Loads a plugin file in a child process first, to detect code that never returns.
    trial_process  A process of its own that loads one plugin file; started by `trial`, imported by nothing.
    loader         Plugin files: each is executed as a fresh module, from the bytes of the snapshot, never from a ...
    errors         Why a plugin file could not be loaded, as Problems: its own line, and the line of the helper ...
    modules        Modules made from bytes that are at hand: never from a file, a compiled file or a search path.
    helper_files   Which files a plugin file is made of: itself, and the helpers that it and they import with ...
"""
