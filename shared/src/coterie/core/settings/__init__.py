"""Settings: sections that papers share, files and flags, how they become dataclasses."""
