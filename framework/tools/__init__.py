"""Tools: what an agent can do.

In reading order; each module imports only from those below it:

    builtin          The tools that come with the runtime. Of the files they see, only write_file and edit_file ...
    plugins          TO WRITE.
    conditions       Whether the conditions of a rule (`when`) are met by the arguments of a call.
    connection_pool  The connections to tool servers: one for each way in which a project declares one, kept while ...
    skills           TO WRITE.
    contracts        Pins the definitions of server tools as they were accepted: a later change waits for an operator.
    mcp              TO WRITE.
    tool_source      Where tools come from that are not Python functions: servers elsewhere, whose word is checked ...
    locations        Paths and URLs in a tool's arguments, written in one canonical form.
    files            TO WRITE.
    extension        Functions of plugins that the runtime calls by name, besides tools: executors and hooks.
    toolset          Which tools an agent is offered: its rules matched against all tools, once per generation.
    tool             A tool: a function, its arguments as a strict model, and what the policy needs to know of it.
    base_folder      The folder that file tools work below: how paths in it are spelled, and which of them ...
    deadline         Calls a function that may never end, and gives it up when it takes too long.
    declaration      What a tool may declare about itself, checked when it is made: a typo shows at load, not at ...
    http             TO WRITE.
    schema           TO WRITE.
    session_values   What tools keep from call to call: values by name, for as long as the conversation lasts.
    tool_span        The parts of a tool's work that it shows in the trace.
"""
