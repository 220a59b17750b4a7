"""The life of a run in this process: started, driven to its end, paused, resumed, cancelled.

In reading order; each module imports only from those below it:

    runtime         The embeddable runtime: opens a project, and starts, resumes and cancels its runs.
    queue           Runs that wait: saves requests, claims those that can start, continues interrupted ones.
    follow          Follows a run, wherever it is in progress: its stored events, then live ones.
    resume          Resumes runs after a pause or a crash, and fails those that crash their process again and again.
    presence        Reports this process to others that share its store, and releases runs that it cannot execute.
    start           Turns a message into a run: its conversation (with forks), agent, first state and store record.
    launcher        Starts each root run in its own task, renews its lease, drives it to its end.
    project         Loads a project: its settings, tools and agents, and the gates of a reload.
    request         A caller's request: message, options, decisions and identity, and its form in the queue.
    background      Work on runs that nobody awaits, slots for runs, and the source that delivers queued runs.
    suggestions     Turns past decisions into rules.
    agent_policy    What an agent may do: its tools with the policy's verdicts, its limits and its prompt.
"""
