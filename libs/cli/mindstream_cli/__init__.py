"""The `mindstream` command and the local stack."""
