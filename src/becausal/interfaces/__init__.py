"""Ways in besides Python: the command line, the page, captum and Quantus."""
