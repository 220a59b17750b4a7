"""Analyzes, checks and renders prompt templates in a sandbox with bounded work.

In reading order; each module imports only from those below it:

    prompt_check   Renders an agent's templates with sample values when its file is loaded.
    prompts        Renders templates by name and locale, and reports their problems with positions.
    analysis       Finds the variables, includes and filters of templates in their syntax trees.
    sandbox        Jinja environment that limits the time and memory of rendering.
    costs          Computes the work of filters, methods and operators before they run.
    render_budget  Counts units of rendering work and measures values.
    samples        Sample values for inputs and for the runtime's own templates.
    variables      Variables of the current run: its message, history and HTTP limits.
"""
