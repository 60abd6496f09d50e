"""What only experiments need: generated scenes with exact ground truth, and the benches."""
