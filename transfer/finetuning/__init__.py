"""Fine-tuning on a share of the labels: 1 %, 10 % or any fraction."""
