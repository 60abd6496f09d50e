"""Figures, images, HTML pages and sentences about explanations."""
