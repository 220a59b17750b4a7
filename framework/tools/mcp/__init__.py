"""MCP servers: their tools, resources and prompts.

In reading order; each module imports only from those below it:

    source          An MCP server as a tool source: lists its tools and calls them.
    client          Requests to an MCP server; answers are checked and converted to text and plain data.
    transports      Transports to MCP servers: child processes (stdio) and streamable HTTP.
    content         Converts MCP results, resources and prompts to text and plain data.
    child_launcher  Starts a program that the kernel kills when its parent process ends. Linux only.
"""
