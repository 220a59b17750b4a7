"""TO WRITE.

In reading order; each module imports only from those below it:

    client  Tools and typed answers for models that know only text: a client around any other client.
    prompt  The text protocol as the model reads it: its rules, the tools, and the conversation so far.
    reply   What a model says in the text protocol, read strictly: one action, one final answer, or the reason why ...
"""
