"""Evals: runs test cases of agents, measures how well a model does on them, and compares versions.

In reading order; each module imports only from those below it:

    gate        The gate of `reload.gate`, without the modules that run test cases.
    comparison  Runs the same cases on two versions, and compares the results.
    statistics  The interval of a paired difference, and its verdict.
    runner      Runs cases in a real runtime, with a scripted model, and checks what the runs did.
    judge       Has a model judge an answer against a rubric.
    suite       Reads and validates the cases of a project.
    export      Exports a recorded run as a case.
"""
