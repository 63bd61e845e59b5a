"""The command `restore`: what a run has removed is taken back."""
