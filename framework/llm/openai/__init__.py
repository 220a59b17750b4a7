"""TO WRITE.

In reading order; each module imports only from those below it:

    client      Every server that speaks OpenAI's chat completions. Whatever goes wrong there leaves here as one ...
    connection  The openai SDK, given requests that are bytes already.
    transport   How the openai SDK's requests go out: by aiohttp, without what httpx does for requests of other kinds.
"""
