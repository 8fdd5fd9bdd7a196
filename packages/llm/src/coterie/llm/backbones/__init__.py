"""The language models that recommend, behind one interface."""
