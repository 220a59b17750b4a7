"""Analyzes, checks and renders prompt templates in a sandbox with bounded work.

In reading order; each module imports only from those below it:

    prompt_check   Renders an agent's templates with sample values when its file is loaded.
    prompts        Variables that a run gives to templates, rendering by name and locale, problems with positions.
    sandbox        Jinja environment that limits the time and memory of rendering.
"""
