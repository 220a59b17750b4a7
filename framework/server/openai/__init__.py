"""`/v1`: agents as models of OpenAI's chat completions and Responses APIs, for unchanged clients.

In reading order; each module imports only from those below it:

    v1_routes          The router of `/v1`.
    answer             The answer of a run: its texts as they arrive, and how it ended.
    client_request     What a client asks for, read from the body of either API.
"""
