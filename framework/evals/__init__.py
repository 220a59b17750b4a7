"""Evals: runs test cases of agents, measures how well a model does on them, and compares versions.

In reading order; each module imports only from those below it:

    comparison  Runs the same cases on two versions, and decides from the results whether one is worse.
    runner      Runs cases in a real runtime, with a scripted model, and checks what these and stored runs did.
    suite       Reads and validates cases, and exports a recorded run as one; judges of answers.
"""
