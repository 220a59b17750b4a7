"""From agent files to agents that are ready to run: parsed specs are linked, compiled, checked and compared.

In reading order; each module imports only from those below it:

    link               Links the agents of a generation; a file with errors keeps its last good version, tightened.
    findings           Errors that a file's first errors hide; the agents that use a file.
    compile            Compiles a parsed agent file into an `Agent`: inputs, rules, hooks; reports what is unresolved.
    diff               Compares two generations; each change widens, tightens, or is neutral.
    lint               Warnings about valid agents: rules without effect, unused variables, too many tools.
    plan_steps         Steps of plans: fixed plans of files, checks of order and calls, `{{ steps.ID.output }}`.
    models             Models of a project: aliases, prices, budgets, settings that a model does not take.
    skills             Agent Skills: reads and checks their folders, and selects those of an agent.
    toolbox            The tools of a generation: those of the process, of plugin files and of tool servers.
"""
