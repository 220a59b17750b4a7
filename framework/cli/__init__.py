"""The command line: one module per command, imported when the command is used.

In reading order; each module imports only from those below it:

    chat               `agentsd chat`: a conversation in the terminal, while the files are watched.
    chat_prompt        Input of a chat on a terminal: line editing, history, pastes, completions.
    chat_commands      The slash commands of a chat, and what a chat knows.
    transcripts        `agentsd conversations show`, `fork`, `export`, `import`, `delete`: one conversation.
    test               `agentsd test`: runs the test cases of agents.
    runs               `agentsd runs`, `conversations`, `memory`, `fleet`, `budgets`: lists of what is in a store.
    main               The `agentsd` command: imports a command when it is called, turns errors into one line.
    run_control        `agentsd runs decide`, `resume`, `cancel`, `tail`, `replay`, and `triggers`.
    run_steps          `agentsd runs show` and `export`: what a run did.
    check              `agentsd check`: reports all problems of a project's files, and applies their fixes.
    run                `agentsd run`, and how other commands run or resume one message: progress, decisions, the answer.
    serve              `agentsd serve`, `worker`, `mcp`, `acp`: serve a project until a signal or the client ends it.
    tools              `agentsd tools` and `models`: a project's tools and models, and what is assumed of them.
    agents             `agentsd agents`, `templates`, `explain`: what a project's agents are and may do.
    grants             `agentsd grants` and `policy`: approvals that are remembered, rules learned from past decisions.
    config             `agentsd config` and `keys`: versions of a project, generations of a server, keys for it.
    completion         `agentsd completion`, the completions of a shell, and the index of all commands.
    entry              Entry point: imports the rest so that Ctrl-C stays quiet.
    init               `agentsd init` and `agentsd new`: create a working project, and agents in it.
    confirm            Asks the user for the decisions that a run or a plan waits for.
    project            `agentsd schema`; reads the project that a command works on, sends its traces.
    location           What a command works on: a project, an agent file, what is stored; options that commands share.
    run_view           Shows a run while it is in progress: its tree, text and status line, below output that stays.
    show               Formats events as text, rows as tables, and traces as waterfalls.
    terminal           The terminal: escaped output, wrapped lines, input, Ctrl-C.
"""
