"""What is built, and what it does where nothing of the checkout is near."""
