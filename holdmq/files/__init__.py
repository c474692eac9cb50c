"""Files and disks: atomic and private writes, signatures, room."""
