"""TO WRITE.

In reading order; each module imports only from those below it:

    source          MCP servers as tool sources: their tools are `mcp.<server>.<tool>`.
    client          What is asked of an MCP server, each answer checked and turned into plain data.
    connection      A connection to an MCP server that is made again when it is lost: one task owns it, calls run ...
    process         An MCP server as a child process: JSON lines over its standard streams, and nothing left of it ...
    trace           Traces of requests to an MCP server outside any run: connecting, and listing its tools.
    child_launcher  Starts a program that the kernel kills when our process ends, however that ends. Linux only.
    content         What an MCP server answers, as text and plain data: what a model can read, no more of it than ...
    errors          Why a connection to an MCP server failed, in words that say what to do and hold no secrets.
    http            An MCP server over HTTP: the SDK's transport over a client with limits of ours.
    metrics         Metrics of MCP clients, by the OpenTelemetry conventions for MCP: how long requests and ...
"""
