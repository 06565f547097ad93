"""Export of regions to files for other programs."""
