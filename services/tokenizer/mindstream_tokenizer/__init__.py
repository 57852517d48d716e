"""mindstream_tokenizer."""
