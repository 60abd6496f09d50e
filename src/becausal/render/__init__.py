"""Explanations as pictures and pages; loaded only when something is drawn."""
