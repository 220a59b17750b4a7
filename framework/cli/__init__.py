"""The command line: one module a command, loaded when it is used.

In reading order; each module imports only from those below it:

    chat           `agentsd chat`: a conversation, with the files watched meanwhile.
    conversations  `agentsd conversations`: what is on record of conversations.
    runs           `agentsd runs`: what is on record of runs, and what can be done with them.
    check          `agentsd check`: every problem of a project's files, at once.
    explain        `agentsd explain`: what an agent may do, and which line of which file says so. Nothing is run.
    run            `agentsd run`: one message, one answer.
    resuming       Going on with a run from the terminal.
    serve          `agentsd serve`: the project over HTTP, with its files watched.
    session        One message from the terminal: shown while it runs, its questions asked, its answer printed.
    confirm        Asks the person at the terminal what a run wants to know.
    tools          `agentsd tools`: which tools a project has, and what one of them answers.
    agents         `agentsd agents`: which agents a project has, and what one of them is in effect.
    config         `agentsd config`: what differs between two versions of a project; what a server has served, and ...
    main           `agentsd`: finds the command, loads only its module, and turns errors into one line and an exit ...
    plan_question  Asks the person at the terminal about a plan: shows it with what the rules say, and takes their ...
    fixing         Writes what findings say is to be written instead, and shows what that changes.
    project        What a command works on: a project that was read, its agents and its tools.
    schema         `agentsd schema`: what editors need to complete, explain and check the project's files.
    test           `agentsd test`: the cases beside the agents, on their scripts or live on a model.
    plan_text      A plan as text that people edit, and back.
    records        Finding runs and conversations on record, for commands.
    remote         A server that runs, as commands ask it: where it is, the key it wants, and what it says.
    location       Where a command works: a project folder, one agent file, or one agent file of a project. ...
    table          Rows of text: a table on a terminal, columns in a pipe.
    tree           The live step tree of a run, for a terminal.
    waterfall      Draws a run's stored trace as a waterfall: what ran inside what, when, for how long, and what ...
    entry          Where the `agentsd` command begins: Ctrl-C is quiet even while the rest is being loaded.
    exporting      Where a command sends its traces.
    init           `agentsd init`: a working project to start from.
    lazy           Groups of commands whose modules are imported when they are called.
    screen         Terminal output: escapes control sequences in text of models, tools and files, and keeps the ...
    show           How one event reads as text; the plain view, one line an event, for pipes and logs.
    terminal       The person at the terminal: whether one is there, what they type, and what Ctrl-C does meanwhile.
    writing        What commands write: to a file, or to standard output.
"""
