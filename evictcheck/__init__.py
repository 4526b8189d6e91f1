"""What a person touches: command line, reports, exports."""
