"""TO WRITE.

In reading order; each module imports only from those below it:

    by_model  The model's part in routing: one typed choice of an agent, and of how the request is worked off.
    rules     Which agent takes a message: explicit > the conversation's last agent > rules > model > default. The ...
"""
