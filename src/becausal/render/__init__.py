"""Explanations as images and pages; loaded only when something is drawn."""
