"""Replay: runs a recorded run again under other files, and reports what differs.

In reading order; each module imports only from those below it:

    player      Replays a run with its recorded models, tools and hooks.
    stored_run  A stored run with everything that replaying or exporting it needs.
"""
