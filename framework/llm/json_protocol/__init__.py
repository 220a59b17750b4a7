"""The JSON protocol: tools and typed answers for models without function calls.

In reading order; each module imports only from those below it:

    client  A client that wraps another one, and the retry of an invalid reply.
    prompt  The protocol as text for the model: its rules, the tools, and the conversation so far.
    schema  The JSON Schema of a reply, for servers that enforce one.
    reply   Parses a reply: one action, one final answer, or the reason why it is neither.
"""
