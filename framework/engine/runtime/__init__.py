"""The life of a run in this process: started, driven to its end, paused, resumed, cancelled.

In reading order; each module imports only from those below it:

    runtime         The embeddable runtime: opens a project, and starts, resumes and cancels its runs.
    parts           Builds the parts of a runtime, and connects them.
    queue           Runs that wait: saves requests, claims those that can begin, continues interrupted ones.
    admission       Admits requests to the queue while it is not full.
    queued_request  A caller's request as the store contains it until its run begins.
    follow          Follows a run, wherever it is in progress: its stored events, then live ones.
    elsewhere       Runs that are followed here while other processes execute them.
    resume          Resumes runs after a pause or a crash, and ends runs that are not resumed.
    suspects        Finds out which of the interrupted runs ends its processes.
    single_call     Calls one tool under an agent's policy, outside any run and without a model.
    model_only      Asks the model of an agent alone: no instructions, no tools, no record.
    hand_on         Leaves runs that this process lacks something for to processes that have it.
    presence        Reports this process to the others that share its store.
    start           Turns a message into a run: its conversation, agent, first state and store record.
    launcher        Starts each root run in its own task, drives it to its end, and stops all runs on close.
    heartbeat       Renews the leases of this process's runs, and reacts to cancel requests and lost leases.
    text_sender     Sends the texts that models write in runs of this process to the processes that follow them.
    receiver        Receives the signals of other processes.
    result          Ends a root run: saves the final state, emits the closing events, and builds the result.
    project         Loads a project: its settings, tools and agents.
    todo_list       Reads and replaces the to-do list of a conversation.
    fork            Begins a conversation with a part of another's history.
    conversation    Loads conversations for their callers.
    max_running     The limits of `work.max_running` that apply to a run.
    request         A caller's request: its options, decisions and identity, and the first state of a run.
    type_check      Checks the types of values that a program passes.
    user_input      A user's message as the caller passes it: text, or texts and files.
    history         Earlier messages as the caller passes them.
    background      Work on runs that nobody awaits.
    places          The places of a process: each queued or continued run needs one.
    agent_policy    What an agent may do: its tools with the policy's verdicts, its limits and its prompt.
    agent_summary   Summaries of the agents in a generation, for lists.
    keep_open       Keeps the context manager of an opened object alive as long as the object.
"""
