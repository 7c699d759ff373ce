"""When things happen: threads, loops and transactions of the worker."""
