"""How well the input is rebuilt from what each layer gives (Figure 3a)."""
