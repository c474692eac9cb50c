"""Copies of a broker's log on several machines: who leads, who follows, and what is confirmed."""
