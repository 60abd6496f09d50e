"""Object detectors: one module per kind of model, as for classifiers; `layouts` and `answers` read what they return."""
