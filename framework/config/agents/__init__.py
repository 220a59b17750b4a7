"""From agent files to agents that are ready to run: parsed specs are linked, compiled, checked and compared.

In reading order; each module imports only from those below it:

    link               Links the agents of a generation; a file with errors keeps its last good version.
    link_context       What the agents of a generation are linked from: parsed files, and what they may refer to.
    file_uses          The agents that use a file, and the variables that a template receives from them.
    findings           Finds the errors of a rejected file that its first errors hide.
    compile            Compiles a parsed agent file into an `Agent`, or reports each reference that does not resolve.
    diff               Compares two generations; each change widens, tightens, or is neutral.
    lint               Warnings about valid agents: rules without effect, unused variables, too many tools.
    models             Checks the model names in agent files and in `agentsd.yaml`.
    toolbox            The tools of a generation: those of the process, of plugin files and of tool servers.
"""
