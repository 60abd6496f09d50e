"""Rounds of removals, as the method `causal` and the level "any" use them: chains, their parts, and the survey before."""
