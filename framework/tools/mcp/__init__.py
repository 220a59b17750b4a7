"""MCP servers: their tools, resources and prompts.

In reading order; each module imports only from those below it:

    source          An MCP server as a tool source: lists its tools and calls them.
    client          A connection to an MCP server, and the client that lists and calls its tools.
    login           Logins at MCP servers with OAuth: how they are stored, obtained, renewed and used.
    transports      Transports to MCP servers: child processes (stdio) and streamable HTTP.
    content         Results, errors, questions and spans of MCP servers, as runs see them.
    child_launcher  Starts a program that the kernel kills when its parent process ends. Linux only.
"""
