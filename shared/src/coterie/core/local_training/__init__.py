"""Training on a client: stacked parameters, row-wise optimizers, the loop over batches."""
