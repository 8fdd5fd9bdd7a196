"""Values with a client axis: trees, ragged lists, changes of rows, keys of random numbers."""
