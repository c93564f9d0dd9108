"""A worker as a process of the operating system: watched, ending with its parent, with durable files."""
