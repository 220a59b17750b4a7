"""TO WRITE.

In reading order; each module imports only from those below it:

    url          Stores by their URL. What a database needs is only loaded when one is opened.
    sql          TO WRITE.
    memory       A store that keeps everything in this process, until it ends.
    protocol     Where runs and conversations are kept: the protocol of a store, and what goes through it.
    database_files  Which files a store keeps its data in, by its URL: tools must not touch them.
"""
