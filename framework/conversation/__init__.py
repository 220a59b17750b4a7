"""The part of a conversation that a model sees: a window of messages, and a summary of those before it.

In reading order; each module imports only from those below it:

    compaction  Replaces the beginning of a long conversation with a summary.
    window      Selects the last messages that are sent to the model.
"""
