"""AG-UI: runs of agents for user interfaces that speak this protocol, such as CopilotKit.

In reading order; each module imports only from those below it:

    endpoint     `POST /agui/{agent}`.
    run          Starts a run, or continues it after an interrupt, and streams its events.
    request      The client's request as a message and options of a run.
    translation  Translates the events of a run into AG-UI events, in an order that clients accept.
    progress     The plan and to-do list as state, the steps of the plan, and sub-agents.
    messages     The messages of a run: which texts are open, and what the client has built from the events.
    interrupts   Confirmations as interrupts, and the client's answers as decisions.
    ids          Ids of messages, tool calls, sub-agents and interrupts, which are unique in a thread.
"""
