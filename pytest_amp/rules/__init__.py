"""What autocast does with each operator: what the data says, what is registered, and what runs."""
