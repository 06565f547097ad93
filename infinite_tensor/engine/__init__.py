"""How a read happens: plan it over the whole chain of tensors, execute bottom up, assemble the result."""
