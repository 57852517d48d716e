"""What the environment holds: addresses and secrets, nothing else."""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from mindstream_common.errors import ConfigError


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the servers are. ``mindstream up`` sets these for the services that it starts."""

    nats_url: str
    s3_endpoint: str
    s3_access_key: str
    s3_secret_key: str
    valkey_url: str
    s3_bucket: str = "mindstream"
    s3_region: str = "us-east-1"
    metrics_host: str = "127.0.0.1"
    metrics_port: int = 0  # 0: any free port


def from_environment(environment: Mapping[str, str] | None = None) -> Settings:
    """Read ``MINDSTREAM_*`` variables.

    Raises:
        ConfigError: a variable is missing or is not what it should be; all that are missing are named at once.
    """
    environment = os.environ if environment is None else environment
    names = {field.name: f"MINDSTREAM_{field.name.upper()}" for field in msgspec.structs.fields(Settings)}
    values = {field: environment[name] for field, name in names.items() if environment.get(name)}
    missing = [names[f.name] for f in msgspec.structs.fields(Settings) if f.required and f.name not in values]
    if missing:
        raise ConfigError(
            f"not set in the environment: {', '.join(missing)}. `mindstream up` sets them for the local stack; "
            "on a cluster they come from the deployment."
        )
    try:
        return msgspec.convert(values, Settings, strict=False)
    except msgspec.ValidationError as error:
        words, _, field = str(error).partition(" - at `$.")
        name = names.get(field.rstrip("`"), "MINDSTREAM_*")
        raise ConfigError(f"{name} is {values.get(field.rstrip('`'))!r} in the environment: {words}.") from error
