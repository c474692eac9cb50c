"""The job behind `holdmq stats`: Spark session, query, and the Delta table it fills exactly once."""
