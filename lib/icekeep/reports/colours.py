"""Colours of the report's page and of pictures, light or dark as whoever looks at them wants pages."""

COLOURS = """\
:root {
  color-scheme: light dark;
  --ground: #f3f6f8; --sheet: #ffffff; --ink: #15232c; --soft: #4d5f6b; --line: #d3dde4;
  --link: #0a5d86; --bar: #2f83ab; --pale: #b5d5e4; --faint: #e3ebf0;
  --bad: #b02a1c; --bad-pale: #f0b9b2; --fair: #7d5200; --fair-pale: #eccf9c; --good: #17704f;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #0d1419; --sheet: #141d24; --ink: #e2ebf0; --soft: #9db0bc; --line: #2b3a45;
    --link: #7cc7e8; --bar: #4fa9cf; --pale: #2a4f62; --faint: #1f2b34;
    --bad: #ff9187; --bad-pale: #5d2a25; --fair: #e6b55f; --fair-pale: #54421f; --good: #63d0a2;
  }
}
"""
"""A style: the names of colours, as custom properties of CSS."""
