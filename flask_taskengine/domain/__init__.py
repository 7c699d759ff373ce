"""Words and arithmetic of the task engine. Standard library only, no input or output."""
