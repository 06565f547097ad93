"""Constants that a test changes."""

SCALE = 1.0
