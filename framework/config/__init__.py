"""Loads a project's files, validates them, and replaces the running configuration when they change.

In reading order; each module imports only from those below it:

    watch          Watches the project's folders and publishes each valid edit as a new generation.
    project_names  The names that a project's files may refer to, for editors.
    generations    Builds, compares, publishes and archives generations: immutable versions of the configuration.
    agents         Compiles agent files and tool sources, checks their references and keeps last good versions.
    templates      Analyzes, checks and renders prompt templates in a sandbox with bounded work.
    file_text      The text of project files as people may read it: without the secrets that it contains.
    files          Reads the project's folders into snapshots, debounces changes, and writes files.
    schema         Generates JSON Schemas of the project's files for editors.
    settings       Process settings from `agentsd.yaml` and `AGENTSD_*` environment variables.
    overlay        The files of settings: `agentsd.yaml`, and the one of an environment that is laid over it.
    run_limits     Limits on the number of runs that are in progress at a time: `work.max_running`.
    api_keys       Keys of the HTTP server: the entries of `server.api_keys`, with what each may do.
    yaml           Parses YAML, validates it against a model, and reports problems with their positions.
"""
