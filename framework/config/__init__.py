"""The configuration plane.

In reading order; each module imports only from those below it:

    watch        Watches the project's folders. An event is only a hint that something changed: the scan of the ...
    generations  TO WRITE.
    agents       TO WRITE.
    files        TO WRITE.
    schema       The formats of a project's files as JSON Schema, for editors: made from the models that load the ...
    settings     Process settings: `agentsd.yaml`, and over it the environment (`AGENTSD_SECTION__KEY`).
    templates    TO WRITE.
    yaml         TO WRITE.
"""
