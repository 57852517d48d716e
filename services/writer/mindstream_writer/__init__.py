"""mindstream_writer."""
