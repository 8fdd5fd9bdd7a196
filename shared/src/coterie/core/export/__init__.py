"""Trained models for other programs: safetensors with a card, ONNX, formats of a paper's own."""
