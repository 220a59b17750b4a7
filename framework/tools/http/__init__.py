"""HTTP for tools, limited to the hosts, methods and networks that the operator allows.

In reading order; each module imports only from those below it:

    client     The HTTP client: requests and redirects within the limits of `tools.http`.
    urls       Parses http(s) URLs and rejects those that clients or servers read in different ways.
"""
