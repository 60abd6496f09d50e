"""The bundled classifier as a torch module: the public door to `becausal.models.bundled.network`."""

from becausal.models.bundled.network import load_network, to_input

__all__ = ["load_network", "to_input"]
