"""Import paths of earlier versions, kept for embedding programs.

In reading order; each module imports only from those below it:

    in_memory  The import path of `MemoryStore` in earlier versions; it is now in `framework.store.memory`.
"""
