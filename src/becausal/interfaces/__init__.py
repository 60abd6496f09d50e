"""Ways in besides Python: the command line, the page and the HTTP API, and the interfaces of captum, Quantus and xaitk."""
