"""What every engine does alike in memory: stamps, queues, newest records, epochs, copies, table records."""
