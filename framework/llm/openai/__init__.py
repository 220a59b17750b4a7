"""Clients for every server with OpenAI's chat completions API or its Responses API.

In reading order; each module imports only from those below it:

    client            Chat completions: builds a request and turns the response into a reply.
    responses         The Responses API: the same.
    responses_format  Converts messages to and from the items of the Responses API.
    exchange          What both share: the exchange with the server, and its errors.
    local_server      What a local server reports about itself: its context window and abilities.
    sdk_connection    Sends requests through the openai SDK, over its HTTP client on aiohttp.
    event_stream      Reads the events of a streamed response from its bytes.
    server_error      The error that a server reports in a response or in an event of a stream.
"""
