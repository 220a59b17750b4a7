"""TO WRITE.

In reading order; each module imports only from those below it:

    runtime    The embeddable runtime: holds the catalog, starts runs, resumes and cancels them.
    resume     Runs that are not new: resumed after a pause or a crash, or ended without being resumed.
    start      How a message becomes a run: its conversation, its agent, its first state, its record.
    launcher   Starts the tasks in which runs go on, and stops them when the runtime closes.
    root       A root run from its first event to its last.
    result     The end of a root run: its record, its conversation, its last events, its one line in the log, its ...
    todo_list     The to-do list of a conversation, for programs and for listeners.
    request    What a caller may say about one run, and how it becomes the run's first state.
    expiry     How long a human may take to decide, and what happens after that.
    heartbeat  Heartbeat: renews the leases of this process's runs, and notices cancel requests and lost leases.
    agent_summary  The agents of a generation, each in a few words.
    opening    A context whose object need not be kept: what it gave holds it.
    options    The options of a run: which there are, and the check that a caller's are among them and of the ...
    project    A project's files, read: what a runtime runs, and all that commands need which run nothing.
    trace      Spans and metrics of a root run and of its routing.
"""
