"""What a verb means, inside the caller's transaction."""
