"""Tools: what an agent can do.

In reading order; each module imports only from those below it:

    remote_sources   Tools of HTTP hosts and agents of other servers, and the connections that generations share.
    a2a_client       The client of such an agent: its card, tasks and results.
    openapi          HTTP APIs: tools that OpenAPI documents or the project's files describe.
    builtin          The tools that come with the runtime: files, search, logs, JSON, arithmetic, notes, HTTP.
    plugin_trial     Loads changed plugins in a child process first, to detect code that never returns.
    plugins          Loads plugin files, each as a fresh module, and sets them up with the generations that use them.
    mcp              MCP servers: their tools, resources and prompts.
    tool_source      The interface of tool servers, tools built from their descriptions, and pinned definitions.
    conditions       Conditions (`when`) of policy rules, and one canonical form of paths and URLs for them.
    logins           Logins at tool servers as files: one for each account, readable by their owner only.
    form             Forms of tool servers: which of them a person is shown, and which values answer them.
    skills           Agent Skills, and the tools with which a model loads them and reads their files.
    toolset          The tools of one agent: which are offered, which rules match each, and a search for them.
    scripts          Tools as functions of scripts, and the interpreter that runs one script with limits and snapshots.
    child_processes  Child processes: what they inherit, the sandbox of `shell`, and hooks that are programs.
    threads          Threads for blocking tools, with a quota for each run, and calls with a time limit.
    http             HTTP of tools: which URLs and addresses they may reach, and the client that checks each of them.
    tool             Tools: a function, the schema of its arguments, and the properties that policies use.
    files            Files below a base folder: paths, patterns of denied files, safe reading and writing.
    declaration      Checks the options of `@tool` when the tool is declared.
    arguments        Validates the arguments of a call, by a function's signature or by a JSON Schema.
    json_schema      Looks up what a JSON Schema allows at a place in a value; repairs arguments, checks results.
"""
