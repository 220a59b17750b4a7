"""Tools: what an agent can do."""
