"""The configuration plane.

A config edit reads down: watch -> catalog -> generation -> toolbox, prompts, parse -> link -> compile.
"""
