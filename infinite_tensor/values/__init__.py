"""Definitions, functions and blends, and checks of user input."""
