"""What was spent, per category."""
