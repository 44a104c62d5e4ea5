"""The studies: resumable, honest about what does not fit, and shown in tables and plots."""
