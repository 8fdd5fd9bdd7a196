"""What a client's adapter or model looks like to other programs: files of peft and transformers."""
