"""The command line: one module per command, imported when the command is used.

In reading order; each module imports only from those below it:

    entry          Entry point: imports the rest so that Ctrl-C stays quiet.
    main           The `agentsd` command: finds a subcommand, turns errors into one line and an exit code.
    budgets        `agentsd budgets`: shows how much of the shared budgets is used.
    chat           `agentsd chat`: a conversation in the terminal, while the files are watched.
    conversations  `agentsd conversations`: list, show, export, import, delete.
    runs           `agentsd runs`: list, show, decide, resume, cancel, replay, export, prune.
    check          `agentsd check`: reports all problems of a project's files.
    explain        `agentsd explain`: shows what an agent may do, and which line decides.
    run            `agentsd run`: sends one message to an agent and prints the answer.
    keys           `agentsd keys`: creates keys of the HTTP server.
    serve          `agentsd serve`: serves a project over HTTP, while its files are watched.
    test           `agentsd test`: runs the test cases of agents.
    tools          `agentsd tools`: lists the tools, calls one, accepts changed ones.
    agents         `agentsd agents`: lists the agents, or shows one with all defaults.
    mcp            `agentsd mcp`: serves agents as tools to an MCP client.
    config         `agentsd config`: compares projects; shows and rolls back the generations of a server.
    init           `agentsd init`: creates a working project.
    resuming       Resumes a stored run from the terminal.
    session        Runs one message: shows progress, asks for decisions, prints the answer.
    confirm        Asks the user for the decisions that a run waits for.
    plan_question  Asks the user to approve, edit or reject a plan.
    plan_text      Converts plans to text that people edit, and back.
    fixing         Applies the fixes of problems to files.
    schema         `agentsd schema`: JSON Schemas for editors.
    project        Reads the project a command works on, and finds its agents and tools.
    records        Finds stored runs and conversations.
    remote         Client of a running agentsd server.
    location       The location a command works on: a project, one agent file, or one file of a project.
    tree           Shows a run as a live tree on a terminal.
    waterfall      Draws a stored trace as a waterfall.
    table          Prints rows: a table on a terminal, columns in a pipe.
    show           Formats events as text, one line per event.
    server_log     The log of commands that serve: as text, or as JSON for log collectors.
    attachments    Finds the paths of images, PDFs and audio in what the user types.
    exporting      Sends the traces of a command to a backend.
    writing        Writes output to a file or to standard output.
    terminal       Reads input and editor text, and handles Ctrl-C.
    screen         Escapes control sequences in terminal output.
    lazy           Command groups that import a command when it is called.
"""
