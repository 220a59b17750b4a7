"""TO WRITE.

In reading order; each module imports only from those below it:

    catalog         What is live now, and how it changes: build the next generation beside the current one, then swap.
    trace           Trace of a reload: from reading the files until they are live.
    history         The generations that have been live, newest last.
    admission       What may keep a generation from going live as a whole: broken settings, strict mode, and the ...
    archived        A generation that is live no more, as little as is needed to make it again.
    blueprint       What an agent's runs need to go on when the project's files are others, as data: its own ...
    candidate       A generation that has been built but is not live: what it would change, and in which direction.
    leases          Who uses which generation: it is live, or runs hold it. With its last user go the uses of its ...
    generation      One immutable, closed set of agents and tools, and how it is built from a snapshot.
    reload_effects  `agentsd.yaml` while the process runs: what an edit changes at once, with the next run, or at ...
    narrowing       What `agentsd.yaml` restricts although it, or another file of the edit, cannot be used.
"""
