"""Generations: immutable versions of the configuration, how they are built, published and rolled back.

In reading order; each module imports only from those below it:

    catalog              The live generation: reload, preview, publish and roll back.
    builder              Builds a generation from a snapshot of the files.
    reload_trace         The trace of a reload, from reading the files to publishing the generation.
    admission            Decides whether a candidate may be published: settings errors, strict mode, the gate.
    hold                 The hold of a rollback, kept in a file: what was rolled back to, and which files it holds back.
    leases               Leases on generations: plugins stay set up while a generation is live or a run uses it.
    file_changes         The texts of files in archived generations, and which generations changed those of an agent.
    history              The last generations that were live, archived in compact form for rollbacks.
    candidate            A generation that is built but not live, with the changes that it would make.
    blueprint            The files that an agent is made of, stored with its runs so that they can be resumed later.
    generation           One immutable set of agents, tools and settings.
    reload_effects       When an edit of `agentsd.yaml` takes effect: immediately, for new runs, or after a restart.
    settings_tightening  Applies the restrictions of an `agentsd.yaml` that is invalid, or part of a rejected edit.
"""
