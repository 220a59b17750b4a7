"""Safe access to files below a base folder.

In reading order; each module imports only from those below it:

    protection    Places that file tools neither read (hidden files) nor write (files that decide what runs).
    atomic_write  Atomic writes: readers see the old content or the new content, never a part.
    safe_open     Opens files and folders below a base folder without following symbolic links.
"""
