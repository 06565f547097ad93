"""Everything that decides the value of a pixel: definitions, functions and blends. Also the checks of user input."""
