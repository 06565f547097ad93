"""Integers only: windows, regions, and sets of points."""
