"""How log lines can look; by itself, so that the command line and the configuration know it without more."""

TEXT, JSON = "text", "json"
FORMATS = (TEXT, JSON)
