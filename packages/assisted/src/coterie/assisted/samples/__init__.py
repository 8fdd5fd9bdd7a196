"""Models of items (or users) as samples, of the residuals of all organisations at hand (ours)."""
