"""Models on a server, called through the Open Inference Protocol; and what chat models need as well."""
