"""Generations: immutable versions of the configuration, how they are built, published and rolled back.

In reading order; each module imports only from those below it:

    catalog              The live generation: reload, preview, publish and roll back.
    builder              Builds a generation from a snapshot of the files.
    history              The last generations, archived for rollbacks; what changed in each file; held rollbacks.
    generation           One immutable set of agents, tools and settings; the files from which an agent is rebuilt.
    reload_effects       When an edit of `agentsd.yaml` takes effect, and which of its changes tighten.
"""
