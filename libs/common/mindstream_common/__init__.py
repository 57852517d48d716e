"""mindstream_common."""
