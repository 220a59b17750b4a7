"""Models: one streaming interface over every provider.

In reading order; each module imports only from those below it:

    providers          Creates the client for a model name: known providers, their APIs, URLs and variables.
    json_protocol      Tools and typed answers for models without function calls: as JSON, or through Instructor.
    cloud              Claude in Amazon Bedrock, and Claude and Gemini in Google Cloud's Vertex AI.
    message_formats    Exports and imports conversations as JSON, neutral or in a provider's format.
    openai             Clients for every server with OpenAI's chat completions or Responses API.
    anthropic          Client for Claude.
    gemini             Client for Gemini.
    offline            The rule-based model behind `model: offline`.
    provider_client    What the clients of all providers share: options, streams, the check of a complete response.
    provider_errors    Translates every failure of a provider to a ModelError.
    answer_text        Thoughts and function calls that a model wrote into its text.
    client             The interface of every model client: request, deltas and reply; a model that follows a script.
    openai_format      Converts messages to and from the format of OpenAI's chat completions.
    message_shape      Conversations and tools as requests: the forms that receivers accept, as JSON encoded once.
    capabilities       Known capabilities of models: features, token limits and prices.
    http_client        The HTTP client passed to provider SDKs, with limits on responses; base URLs of servers.
"""
