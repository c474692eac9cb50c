"""The parent process: it binds addresses, starts and watches workers, and answers commands."""
