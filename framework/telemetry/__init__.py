"""What a run leaves behind for people and their tools: spans and one log record."""
