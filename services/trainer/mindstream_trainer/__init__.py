"""mindstream_trainer."""
