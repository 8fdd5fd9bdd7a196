"""RecFormer (Li et al., KDD 2023, arXiv 2305.13731): a Longformer over the text of items."""
