"""A fleet on one PostgreSQL: an API, two workers, load, kills, and the facts of what they did."""
