"""The HTTP API, ``/api/v1``: a table of endpoints, each with a role and models of what goes in and out."""
