"""mindstream_cleaning."""
