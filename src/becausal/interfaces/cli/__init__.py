"""The command line: `app` has the entry point, and each other module a command or what commands share."""
