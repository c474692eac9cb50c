"""What is told to people: alarms and their channels, backlogs and statistics."""
