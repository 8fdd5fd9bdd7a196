"""What FedAvg and PPLR cost a client, over k (Table 2 and Figure 3b)."""
