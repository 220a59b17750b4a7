"""Evals: runs test cases of agents, and measures how well a model does on them.

In reading order; each module imports only from those below it:

    gate          The gate of `reload.gate: tests`, without the modules that run test cases.
    runner        Runs cases in a real runtime, with a scripted model, and checks what the runs did.
    suite         Reads and validates the cases of a project.
    export        Exports a recorded run as a case.
"""
