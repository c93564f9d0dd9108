"""Files that commands generate from code: CustomResourceDefinitions, the admission policy, the keys of NATS."""
