"""MCP server: agents as tools for programs such as Claude Code, Cursor and Zed.

In reading order; each module imports only from those below it:

    endpoint  `/mcp`.
    http      The transport of `/mcp`, streamable HTTP, with the identity and the limits of each request.
    stdio     `agentsd mcp`: serves one client over standard input and output.
    agents    The server: one tool per agent of the live generation.
"""
