"""The worker processes of a job: four roles, and the engines, backends, stores and transports that they work with."""
