"""What a shell offers when TAB is pressed."""
