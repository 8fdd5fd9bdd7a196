"""The front door: what ``import coterie`` offers. Light to import; work loads what it needs."""
