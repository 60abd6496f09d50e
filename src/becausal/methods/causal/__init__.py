"""The subject: responsibility, its refinement, our own search, and the definitions by brute force."""
