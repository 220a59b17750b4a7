"""Data types and small helpers that every other package uses.

In reading order; each module imports only from those below it:

    events              Events of runs and configuration reloads, and their JSON form.
    case                Test cases of agents: messages, scripted model answers, and expectations.
    change              A change of a configuration key and its effect on permissions.
    outcome             Outcomes of a run: status, HTTP status, exit code and span error.
    errors              Errors, by who caused them.
    state               The persisted state of a run, pending decisions, and the result for the caller.
    plan                A plan as data: steps, their states, what was approved, and the pure transitions between them.
    preflight           What is known of a plan before anything of it is done: a verdict for each step, findings, ...
    tool_servers        Files of tool servers (`plugins/*.yaml`): MCP servers and hosts of HTTP skills.
    spec                An agent file. Editors and the reference page show the docstrings of its fields.
    transcript          Checks of message lists, and summaries of long conversations.
    messages            Messages, tool calls, tool results and tool definitions, independent of the provider.
    http                What tools may reach over HTTP: a ceiling that the operator sets and no agent raises.
    mcp_policy          Settings for MCP servers in agent files.
    redact              Masks secrets in text and data that people or other programs see: errors, logs, events, ...
    problem             Problems found in files, with line, column and hint.
    report              Parts of a run's result: trace entries, call summaries, statistics, errors.
    todo                The to-do list of a conversation: its items, and how one version of the list follows from ...
    warnings            Warnings of a run, and the table of their codes.
    backoff             Exponential backoff with jitter: the wait before a retry.
    bounded_body        The body of an HTTP answer that may only be so long: no server fills the memory of this ...
    confirmation_kinds  Kinds of confirmations, and the decisions that each accepts.
    digest              Digests of approved content: arguments, plans and tool definitions.
    frozen              The base class of immutable data, and durations.
    linear_pattern      Regular expressions from configuration files, matched in linear time against the text of ...
    private_folder      The folder of a project's own data: only its user may look into it.
    server_address      Host and port of a URL, for telemetry.
    status              The statuses of a run.
    strict_json         JSON read strictly: what a model or a server writes either means one thing, or is refused ...
    text                Text helpers: shorten, put on one line, replace lone surrogates, suggest similar names.
    trace               Finished spans as plain data.
"""
