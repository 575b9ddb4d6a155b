"""diagnose: where the time of a DataLoader's loop goes, and what would change it."""
