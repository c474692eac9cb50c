"""The message store: one Protocol (`storage.api.store`), the log engine behind it (`storage.log`)."""
