"""Writes the pages of docs/reference from the code: `python -m examples.reference`.

__main__      Writes all pages.
files         Agent files and `agentsd.yaml`, from their JSON Schemas.
commands      The command line, from click.
outcomes      Error codes and exit codes, from the tables of `framework/types`.
stream        Events, from their classes.
policy        Verdicts of the policy, by evaluating all combinations of rules.
http          Routes of the server, from its OpenAPI document.
python        Public names, from their signatures and docstrings.
telemetry     Metrics and attributes, from where the code creates them.
templates     Variables of templates.
markdown      Tables, and docstrings as Markdown.
"""
