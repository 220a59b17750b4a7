"""What the runtime costs, as ratios against baselines measured in the same run. Nothing here passes or fails."""
