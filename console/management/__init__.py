"""What is looked at and changed in the cluster: topics, groups, sessions, messages, dead letters, alarms."""
