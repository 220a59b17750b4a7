"""TO WRITE.

In reading order; each module imports only from those below it:

    compaction  The beginning of a long conversation as a summary: pure functions over messages.
    window      Which part of a conversation the model gets to see: pure functions over messages.
"""
