"""The command line: one module per command, imported when the command is used.

In reading order; each module imports only from those below it:

    entry          Entry point: imports the rest so that Ctrl-C stays quiet.
    main           The `agentsd` command: finds a subcommand, turns errors into one line and an exit code.
    budgets        `agentsd budgets`: shows how much of the shared budgets is used.
    chat           `agentsd chat`: a conversation in the terminal, while the files are watched.
    chat_prompt    Input of a chat on a terminal: line editing, history and pastes.
    completer      Completes slash commands, agents, models, inputs and files.
    chat_commands  The slash commands of a chat.
    chat_state     What a chat knows: its options, its last result, its input, attached files.
    conversations  `agentsd conversations`: list, show, fork, export, import, delete.
    runs           `agentsd runs`: list, show, decide, resume, cancel, replay, export, prune.
    fleet          `agentsd fleet`: shows the processes that share a store, and what waits where and why.
    check          `agentsd check`: reports all problems of a project's files, and applies their fixes.
    explain        `agentsd explain`: shows what an agent may do, and which line decides.
    run            `agentsd run`: sends one message to an agent and prints the answer.
    models         `agentsd models`: what is assumed of a model, and whether its server agrees.
    keys           `agentsd keys`: creates keys of the HTTP server.
    worker         `agentsd worker`: executes runs that wait in a store, next to other workers.
    serve          `agentsd serve`: serves a project over HTTP, while its files are watched; its log.
    test           `agentsd test`: runs the test cases of agents.
    tools          `agentsd tools`: lists the tools, calls one, accepts changed ones.
    agents         `agentsd agents`: lists the agents, or shows one with all defaults.
    acp            `agentsd acp`: serves agents to an editor, over standard input and output.
    mcp            `agentsd mcp`: serves agents as tools to an MCP client.
    config         `agentsd config`: compares projects; shows and rolls back the generations of a server.
    completion     `agentsd completion`, and the completions of a shell.
    new            `agentsd new`: adds an agent to a project.
    init           `agentsd init`: creates a working project.
    project_files  Texts of the files that `init` and `new` write.
    session        Runs or resumes one message: shows progress, asks for decisions, prints the answer.
    confirm        Asks the user for the decisions that a run or a plan waits for.
    schema         `agentsd schema`: JSON Schemas for editors.
    templates      `agentsd templates`: the prompt templates, and the variables of one.
    records        Finds stored runs and conversations.
    project        Reads the project that a command works on, and finds its tools.
    location       The location a command works on: a project, one agent file, or one file of a project.
    run_view       Shows a run on a terminal: tree, Markdown as it arrives, status line.
    show           Formats events as text, rows as tables, and traces as waterfalls.
    exporting      Sends the traces of a command to a backend.
    lazy           Command groups that import a command when it is called, and print its help without it.
    live_area      Lines at the bottom of a terminal that change, below output that stays.
    terminal       The terminal: escaped output, wrapped lines, input, Ctrl-C.
    options        Options and arguments that several commands share.
    command_index  The generated index of all commands: help and options.
"""
