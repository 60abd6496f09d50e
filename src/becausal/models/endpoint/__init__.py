"""Models on a server, called through the Open Inference Protocol."""
