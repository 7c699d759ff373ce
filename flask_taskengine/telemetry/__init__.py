"""What can be seen of the engine from outside. Driven by its signals; the engine does not know it."""
