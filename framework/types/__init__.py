"""Data types and small helpers that every other package uses.

In reading order; each module imports only from those below it:

    events              Events of runs and configuration reloads, and their JSON form.
    case                Test cases of agents: messages, scripted model answers, and expectations.
    file                Files for models: images, PDFs and audio, with their bytes.
    errors              Errors, by who caused them, and the outcome that surfaces show for each.
    state               The persisted state of a run, pending decisions, and the result for the caller.
    plan                What a run intends: plans, their cost before any step runs, and to-do lists.
    memory              Notes that agents keep across conversations, and the words by which they are found.
    grant               Approvals that are remembered, and how the settings bound them.
    tool_servers        Files of tool servers (`plugins/*.yaml`), and the settings of the sandbox.
    spec                An agent file, with its patterns. Editors and the reference page show the docstrings of fields.
    messages            Messages, tool calls and results, and the transcript that a store keeps of them.
    media               Images, PDFs and audio in messages, and how their bytes tell their format.
    http                HTTP limits of tools, server addresses, delays between requests, trusted certificates.
    http_transport      HTTP clients of httpx: bounded responses, and connections that are replaced.
    redact              Masks secrets in text and data that people or other programs see.
    problem             Problems in a project's files with line, column and hint, and changes of files.
    report              Parts of a run's result: status, warnings, statistics; spans; processes and what waits.
    budget              Budgets that runs share: their definition, and the counters of what is used.
    installation        The installed package: version, command that installs more, private folder for data.
    flat_schema         The properties of a JSON Schema in one list, whatever choices it is composed of.
    frozen              The base class of immutable data, and durations.
    text                Text for people and for stores, strict JSON (unique keys, bounded size), digests of values.
"""
