"""The tables of the statistics job as data: their schemas, and reading them without Spark or a JVM."""
