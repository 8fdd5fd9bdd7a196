"""Each scenario's own network beside one fine-tuned from FedAvg's, their logits mixed; ours."""
