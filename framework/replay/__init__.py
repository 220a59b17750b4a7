"""TO WRITE.

In reading order; each module imports only from those below it:

    player    Carries a recorded run out again, on a recording of what its models and tools said.
    compare   A recorded run once more, offline and through the same engine, under other files: what would be ...
    recorded  A run's record in the place of its models and tools: they say again what they said, and nothing is ...
"""
