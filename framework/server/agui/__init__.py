"""AG-UI: runs of agents for user interfaces that speak this protocol, such as CopilotKit.

In reading order; each module imports only from those below it:

    endpoint     `POST /agui/{agent}`.
    run          Starts a run, or continues it after an interrupt, and streams its events.
    request      The client's request as a message and options of a run.
    translation  Translates the events of a run into AG-UI events, in an order that clients accept.
"""
