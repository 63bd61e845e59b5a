"""The configuration file and its layers; here is only where it is looked for, which help says without reading one."""

DEFAULT_PATH = "conf/icekeep.yaml"
"""The file of the current directory that is read if it is there and no other is named."""

CONFIG_VARIABLE = "ICEKEEP_CONFIG"
"""The environment variable that names a file where no flag does."""

WHERE = f"the file that {CONFIG_VARIABLE} names, {DEFAULT_PATH} or ~/.config/icekeep/icekeep.yaml"
"""For people: where a configuration is looked for, in this order."""
