"""What the operator decides from what it observes: actions, status, events, trainer attempts."""
