"""What a worker needs as an operating-system process: ending with its parent, durable files, live configuration."""
