"""Plain ``nn.Module`` recommenders with a pure ``score`` and ``loss``."""
