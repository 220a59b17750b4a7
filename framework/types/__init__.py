"""Data types and small helpers that every other package uses.

In reading order; each module imports only from those below it:

    events              Events of runs and configuration reloads, and their JSON form.
    case                Test cases of agents: messages, scripted model answers, and expectations.
    change              A change of a configuration key and its effect on permissions.
    file                Files for models: images, PDFs and audio, with their bytes.
    outcome             Outcomes of a run: status, HTTP status, exit code and span error.
    errors              Errors, by who caused them.
    fleet               The processes that share a store, what each executes, and what waits for them.
    run_request         A request for a run as the caller sent it, stored until a process executes it.
    state               The persisted state of a run, pending decisions, and the result for the caller.
    plan                Plans as data: steps, their states, the scope of an approval, and state transitions.
    preflight           The check of a plan before it runs: verdicts, findings, and a cost estimate.
    tool_servers        Files of tool servers (`plugins/*.yaml`): MCP servers and hosts of HTTP skills.
    spec                An agent file. Editors and the reference page show the docstrings of its fields.
    transcript          Checks of message lists, and summaries of long conversations.
    messages            Messages, tool calls, tool results and tool definitions, independent of the provider.
    media               Parts of messages: text, and references to images, PDFs and audio.
    http                HTTP limits of tools: the operator sets them, and no agent can raise them.
    mcp_policy          Settings for MCP servers in agent files.
    redact              Masks secrets in text and data that people or other programs see.
    problem             Problems found in files, with line, column and hint.
    report              Parts of a run's result: trace entries, call summaries, statistics, errors.
    todo                The to-do list of a conversation, and the merge of a new version into it.
    warnings            Warnings of a run, and the table of their codes.
    backoff             Exponential backoff with jitter: the wait before a retry.
    bounded_body        Limits the size of HTTP response bodies of httpx.
    budget              Budgets that runs share: their definition, and the counters of what is used.
    certificates        The certificates that HTTPS clients trust, read once a process.
    confirmation_kinds  Kinds of confirmations, and the decisions that each accepts.
    digest              Digests of content: arguments, plans, tool definitions and files.
    extras              The command that installs packages, for the way in which agentsd was installed.
    flat_schema         The properties of a JSON Schema in one list, whatever choices it is composed of.
    frozen              The base class of immutable data, and durations.
    imports             Imports that keep the garbage collector away from the objects they create.
    lazy_pattern        Regular expressions that are compiled when they are first used.
    linear_pattern      Regular expressions from configuration files, matched in linear time.
    media_format        Media types by content, whether files are complete, and estimates of their tokens.
    private_folder      The `.agentsd` folder for a project's data, accessible to its user only.
    python_expression   Arithmetic, parsed with Python's own parser.
    server_address      Host and port of a URL, for telemetry.
    status              The statuses of a run.
    strict_json         Strict JSON parsing: unique keys, finite numbers, bounded depth and size.
    text                Text helpers: shorten, put on one line, replace lone surrogates, suggest similar names.
    trace               Finished spans as plain data.
    version             The version of the installed package.
"""
