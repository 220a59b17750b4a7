"""The life of a run in this process: started, driven to its end, paused, resumed, cancelled.

In reading order; each module imports only from those below it:

    runtime         The embeddable runtime: opens a project, and starts, resumes and cancels its runs.
    queue           Runs that wait: saves requests, claims those that can begin, continues interrupted ones.
    follow          Follows a run, wherever it is in progress: its stored events, then live ones.
    resume          Resumes runs after a pause or a crash, and ends runs that are not resumed.
    presence        Reports this process to the others that share its store.
    start           Turns a message into a run: its conversation, agent, first state and store record.
    launcher        Starts each root run in its own task, drives it to its end, and stops all runs on close.
    result          Ends a root run: saves the final state, emits the closing events, and builds the result.
    project         Loads a project: its settings, tools and agents.
    conversation    Loads conversations for their callers.
    request         A caller's request: its options, decisions and identity, and the first state of a run.
    background      Work on runs that nobody awaits.
    agent_policy    What an agent may do: its tools with the policy's verdicts, its limits and its prompt.
"""
