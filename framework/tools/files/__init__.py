"""TO WRITE.

In reading order; each module imports only from those below it:

    atomic_write  Writing files below a base folder: a whole new content takes a file's place at once, or nothing ...
    protection    Places that file tools leave alone: hidden ones are not read, those that decide what runs are ...
    safe_open     Opening files strictly below a base folder.
"""
