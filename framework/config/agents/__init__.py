"""From agent files to agents that are ready to run: parsed specs are linked, compiled, checked and compared.

In reading order; each module imports only from those below it:

    link               Links the agents of a generation; a file with errors keeps its last good version.
    settled            The agents that an edit cannot affect: they need not be linked again.
    tightening         Applies the restrictions of an invalid file to the last good version of its agent.
    link_context       What the agents of a generation are linked from: parsed files, and what they may refer to.
    file_uses          The agents that use a file, and the variables that a template receives from them.
    findings           Finds the errors of a rejected file that its first errors hide.
    compile            Compiles a parsed agent file into an `Agent`, or reports each reference that does not resolve.
    diff               Compares two generations; each change widens, tightens, or is neutral.
    inputs             Pydantic models for the inputs of an agent, and checks of its input and output schemas.
    extensions         Checks the executors and hooks that agents name.
    rules              Checks the rules of an agent: each must match a tool, and its conditions that tool's arguments.
    lint               Warnings about valid agents: rules without effect, unused variables, too many tools.
    model_settings     Finds model settings that a model does not support.
    prices             Finds cost limits that cannot be enforced: the price of a model is unknown, or was left at 0.
    unused_limits      Finds limits on runs in progress whose agent or model does not exist.
    models             Checks the model names in agent files and in `agentsd.yaml`.
    budgets            Shared budgets with their places, and checks of the names that agent files use.
    toolbox            The tools of a generation: those of the process, of plugin files and of tool servers.
    external_tools     Discovers the tools of MCP servers and skill hosts, and reports those that are unavailable.
    sources            Reads the declarations of MCP servers and skill hosts in `plugins/*.yaml`.
    unexpected_errors  Converts an unexpected exception to a `Problem` of the file that caused it.
"""
