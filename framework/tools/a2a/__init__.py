"""Agents of other servers, used as sub-agents by the protocol A2A 1.0.

In reading order; each module imports only from those below it:

    source  A remote agent as a source of one tool, `agent.NAME`, which its card describes.
    task    One call: a task of the remote agent, from its first message to its end, across pauses and processes.
    client  The requests: the SDK's client on the guarded HTTP client, and what a card must say.
"""
