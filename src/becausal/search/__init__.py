"""Everything that asks: searches are generators, and know neither a model nor an engine."""
