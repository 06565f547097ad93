"""Everything that decides the value of a pixel: definitions, functions and blends; and the checks of user input."""
