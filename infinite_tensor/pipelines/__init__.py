"""The work of a user in one call, made of the public parts of the library."""
