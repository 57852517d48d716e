"""mindstream_ingest."""
