"""TO WRITE.

In reading order; each module imports only from those below it:

    debounce  When what lies on disk may go live: not while it is being written, and what gives rights later than ...
    snapshot  The project's files as bytes, read in one go: what a generation is built from.
    reading   Reads a project's folders: which files count, and each of them in one piece, never half of what is ...
    roots     The folders that are watched, told apart from others that stand in their place later.
"""
