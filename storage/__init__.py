"""The message store: one Protocol (`storage.store`), the log engine behind it (`storage.log`)."""
