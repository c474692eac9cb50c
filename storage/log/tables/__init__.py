"""Tables: the newest value by key, applied from the log into LMDB."""
