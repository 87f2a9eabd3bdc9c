"""One router per resource; a handler's name is its operation's name in snake case."""
