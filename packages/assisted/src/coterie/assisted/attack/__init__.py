"""What a reader of residuals learns of the ratings that they were made of."""
