"""The configuration plane. A config edit reads down: watch -> catalog -> compile -> parse, prompts, settings."""
