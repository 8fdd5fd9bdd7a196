"""How fast local training and whole rounds are, and what memory they take."""
