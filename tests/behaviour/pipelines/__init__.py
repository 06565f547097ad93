"""Sources, noise, map and predict."""
