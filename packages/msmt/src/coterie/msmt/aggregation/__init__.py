"""What the server of PF-MSMTrec makes of uploads (section 3.3), as functions of tensors."""
