"""Models: one streaming interface over every provider."""
