"""PRODUCE: records into the log in the order of their producers, repeats left out."""
