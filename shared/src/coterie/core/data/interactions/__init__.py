"""Who had what and when: blocks, filters, splits, negatives, batches of pairs."""
