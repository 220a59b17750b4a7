"""Tools: what an agent can do.

In reading order; each module imports only from those below it:

    builtin          The tools that come with the runtime: files, search, logs, JSON, arithmetic, notes, HTTP.
    plugins          TO WRITE.
    conditions       Evaluates the conditions (`when`) of a policy rule against the arguments of a call.
    connection_pool  The connections to tool servers: one for each way in which a project declares one, kept while ...
    skills           TO WRITE.
    contracts        Pins the definitions of server tools as they were accepted: a later change waits for an operator.
    mcp              TO WRITE.
    tool_source      Where tools come from that are not Python functions: servers elsewhere, whose word is checked ...
    locations        Converts paths and URLs in arguments to one canonical form, before the policy is evaluated.
    files            Safe access to files below a base folder.
    extension        Functions of plugins that the runtime calls by name, besides tools: executors and hooks.
    toolset          Which tools an agent is offered: its rules matched against all tools, once per generation.
    tool             A tool: a function, its arguments as a strict model, and what the policy needs to know of it.
    base_folder      The base folder of file tools: splits paths, matches patterns, names denied files.
    deadline         Calls a function that may never end, and gives it up when it takes too long.
    declaration      What a tool may declare about itself, checked when it is made: a typo shows at load, not at ...
    http             HTTP for tools, limited to the hosts, methods and networks that the operator allows.
    schema           Schemas of tools: checks and repairs of arguments, and checks of return values.
    session_values   What tools keep from call to call: values by name, for as long as the conversation lasts.
    tool_span        The parts of a tool's work that it shows in the trace.
"""
