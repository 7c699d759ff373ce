"""What the tests stand on: servers, databases, hosts, worker processes and the one way to wait."""
