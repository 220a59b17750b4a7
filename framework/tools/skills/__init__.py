"""Skills of other services, called over HTTP.

In reading order; each module imports only from those below it:

    source  A skill host as a tool source: discovers its skills and calls them.
    format  The JSON of a skill host: its list of skills and the result of a call.
"""
