"""Planning, computing and assembling of reads."""
