"""The causal methods: the search `causal`, the paper's `dc-causal`, and the definitions by brute force."""
