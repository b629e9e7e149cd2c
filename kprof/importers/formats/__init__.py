"""A module per format that can be imported: its name is that of `--kind`, and it defines FORMAT."""
