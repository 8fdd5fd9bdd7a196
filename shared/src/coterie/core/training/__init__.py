"""Trainings by Lightning: the module, what happens beside its rounds, the commands."""
