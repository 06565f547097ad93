"""What decides a pixel: definition, functions and blends, and the checks of what users give."""
