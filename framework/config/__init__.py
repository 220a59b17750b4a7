"""Loads a project's files, validates them, and replaces the running configuration when they change.

In reading order; each module imports only from those below it:

    watch          Watches the project's folders and publishes each valid edit as a new generation.
    editing        Shows files to people without secrets, and writes their edits.
    schema         JSON Schemas of the project's files for editors, with the names in a project.
    generations    Builds, compares, publishes and archives generations: immutable versions of the configuration.
    triggers       Reads and checks trigger files, and computes the times of cron expressions.
    agents         Compiles agent files and tool sources, checks their references and keeps last good versions.
    templates      Analyzes, checks and renders prompt templates in a sandbox with bounded work.
    snapshot       The files of a project at one moment, and the scanner that reads them.
    settings       Process settings from `agentsd.yaml` and `AGENTSD_*` environment variables.
    overlay        The files of settings: `agentsd.yaml`, and the one of an environment that is laid over it.
    api_keys       Keys of the HTTP server: the entries of `server.api_keys`, with what each may do.
    yaml           Parses YAML, validates it against a model, and reports problems with their positions.
"""
