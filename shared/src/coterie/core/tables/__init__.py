"""Tables of results over seeds: paired comparisons, resumable runs, plots."""
