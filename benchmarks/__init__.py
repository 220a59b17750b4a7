"""Benchmarks of the runtime, as ratios to baselines measured in the same process. They have no pass or fail."""
