"""`/v1`: agents as models of OpenAI's chat completions and Responses APIs, for unchanged clients.

In reading order; each module imports only from those below it:

    v1_routes          The router of `/v1`.
    v1_route           The route class: request ids, and failures that clients must not repeat.
    chat_completions   `POST /v1/chat/completions`.
    responses          `POST /v1/responses`.
    models             `GET /v1/models`: the agents, and `auto`, the router.
    background_tasks   Open WebUI's own requests, for titles and the like: the agent's model alone answers them.
    exchange           Runs the agent of a request, and sends its answer whole or as server-sent events.
    repeated_requests  Recognizes requests that the openai SDK repeats by itself.
    run_answer         Starts the run of a request, and reads its answer.
    client_request     What a client asks for, read from the body of either API.
    bodies             The request bodies: the fields of OpenAI's API that have an effect here.
    chat_format        Runs in the format of chat completions, whole or in chunks.
    response_format    Runs in the format of the Responses API, whole or as its events.
    answer             The answer of a run: its texts as they arrive, and how it ended.
"""
