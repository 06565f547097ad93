"""Integer geometry of windows, regions and sets of points."""
