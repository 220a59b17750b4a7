"""Tools: what an agent can do.

In reading order; each module imports only from those below it:

    connection_pool  Connections to tool servers, shared by the generations that use the same server entry.
    a2a              Agents of other servers, used as sub-agents by the protocol A2A.
    openapi          HTTP APIs: tools that OpenAPI documents or the project's files describe.
    builtin          The tools that come with the runtime: files, search, logs, JSON, arithmetic, notes, HTTP.
    plugins          Plugin files: Python files with tools, hooks and executors, reloaded while the process runs.
    conditions       Evaluates the conditions (`when`) of policy rules, and checks them against the arguments' types.
    contracts        Pins the definitions of server tools: a changed tool waits until an operator accepts it.
    mcp              MCP servers: their tools, resources and prompts.
    http_hosts       HTTP hosts that describe their tools in a file, and the source that calls them.
    tool_source      The interface of tool servers, and tools built from their descriptions.
    logins           Logins at tool servers as files: one for each account, readable by their owner only.
    form             Forms of tool servers: which of them a person is shown, and which values answer them.
    locations        Converts paths and URLs in arguments to one canonical form, before the policy is evaluated.
    command_hooks    Hooks that are programs: only exit code 0 with a verdict allows.
    skills           Agent Skills, and the tools with which a model loads them and reads their files.
    sandbox          Executes commands in a sandbox, with folders of the project and limits.
    script_sandbox   Runs one script in an interpreter of its own, with limits and snapshots.
    toolset          The tools of one agent: which are offered to the model, and which rules match each.
    tool_search      Finds tools by words: `tool_search`, for agents with more tools than a request should contain.
    script_functions  Tools as functions of a script: names, signatures, and the tool that runs scripts.
    tool             Tools: a function, the schema of its arguments, and the properties that policies use.
    files            Files below a base folder: paths, patterns of denied files, safe reading and writing.
    child_processes  Child processes: how Python is started, what they inherit, who may read this process.
    deadline         Calls a function in a thread with a time limit, and abandons it when the limit is exceeded.
    threads          Threads for blocking tools and hooks, with a quota for each run.
    declaration      Checks the options of `@tool` when the tool is declared.
    http             HTTP for tools, limited to the hosts, methods and networks that the operator allows.
    schema           Schemas of tools: checks and repairs of arguments, and checks of return values.
"""
