"""Models: one streaming interface over every provider.

In reading order; each module imports only from those below it:

    providers          From a model's name to a client: which servers are known, where they are, which variable ...
    openai             TO WRITE.
    json_protocol      TO WRITE.
    instructor_client  Typed answers from any model, through Instructor, asked by way of our own gateway.
    forms              The import path of the conversation formats in earlier versions; they are now in ...
    message_formats    A conversation as data, out and back: neutral to providers, or as the APIs of OpenAI, ...
    anthropic          TO WRITE.
    gemini             TO WRITE.
    stream_assembler   A streamed answer, put together from its chunks.
    reply_check        Whole answers, judged alike for every provider: is it whole, may its tool calls run, what ...
    offline            TO WRITE.
    provider_errors    Everything that goes wrong at a provider, as one ModelError: one line, retryable or not, ...
    scripted           A model that says what a script tells it to: for tests of agents.
    client             The one interface every model is behind.
    base_url           Where a model's server is: an address as people write it, and as clients take it.
    capabilities       What is known of models before they are asked: what they can do, how long they read and ...
    http_client        HTTP for SDKs: the client they are given, and what they do not notice of an answer.
    openai_format      Our messages in the form of the chat-completions wire, and back. Pure: no I/O, no SDK.
    tokens             How many tokens a text is, about, without asking anybody.
    request_cache      Requests as bytes, of which each part is written once: tools once a generation, a message ...
"""
