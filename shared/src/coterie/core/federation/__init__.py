"""A federation in one place: cohorts and their asks, private state, guard, folds, ledger."""
