"""Layers of many networks side by side, feature-major; a first layer on projected tables."""
