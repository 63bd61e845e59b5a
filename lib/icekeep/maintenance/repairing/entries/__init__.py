"""What entries and manifest lists say, measured again."""
