"""Tables by key: requests and watches."""
