"""The trainer's metrics. One exporter for the run; a rank is a label, so that no aggregation hides a NaN."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

from mindstream_trainer.report import Stepped

LABELS = ["run"]
STEP = Gauge("mindstream_train_step", "Optimizer updates done", LABELS)
LOSS = Gauge("mindstream_train_loss", "Mean masked-LM loss of the last global batch", [*LABELS, "rank"])
LEARNING_RATE = Gauge("mindstream_train_learning_rate", "Learning rate of the last update", LABELS)
GRADIENT_NORM = Gauge(
    "mindstream_train_gradient_norm", "Global gradient norm of the last update before clipping", LABELS
)
LOSS_SCALE = Gauge("mindstream_train_loss_scale", "Loss scale", LABELS)
TOKENS = Counter("mindstream_train_tokens_total", "Tokens trained on, without special tokens and padding", LABELS)
ROWS = Counter("mindstream_train_rows_total", "Rows trained on", LABELS)
TOKENS_PER_SECOND = Gauge("mindstream_train_tokens_per_second", "Tokens per second over the last update", LABELS)
STEP_SECONDS = Histogram(
    "mindstream_train_step_seconds", "Seconds per update", LABELS,
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)  # fmt: skip
DATA_WAIT_SECONDS = Counter("mindstream_train_data_wait_seconds_total", "Seconds in which no data was there", LABELS)
WINDOW = Gauge("mindstream_train_window", "Window that is trained on", LABELS)
WINDOWS_PLANNED = Gauge("mindstream_train_windows_planned", "Windows in the journal", LABELS)
CHECKPOINT_STEP = Gauge("mindstream_train_checkpoint_step", "Step of the newest checkpoint in the store", LABELS)
CHECKPOINT_TIME = Gauge(
    "mindstream_train_checkpoint_timestamp_seconds", "When it was stored, seconds since the epoch", LABELS
)
RESTARTS = Counter("mindstream_train_restarts_total", "Times that a rank was started again after it died", LABELS)
INCIDENTS = Counter(
    "mindstream_train_incidents_total", "Updates that were stopped because a number was not finite", LABELS
)


def at_zero(run: str) -> None:
    """Show the counters at 0 from the start."""
    for metric in (TOKENS, ROWS, DATA_WAIT_SECONDS, RESTARTS, INCIDENTS):
        metric.labels(run)


def stepped(run: str, step: Stepped) -> None:
    """Take in an update."""
    STEP.labels(run).set(step.step)
    LOSS.labels(run, "0").set(step.loss)
    LEARNING_RATE.labels(run).set(step.learning_rate)
    GRADIENT_NORM.labels(run).set(step.grad_norm)
    LOSS_SCALE.labels(run).set(step.loss_scale)
    TOKENS.labels(run).inc(step.tokens)
    ROWS.labels(run).inc(step.rows)
    TOKENS_PER_SECOND.labels(run).set(step.tokens / max(step.seconds + step.data_wait_seconds, 1e-9))
    STEP_SECONDS.labels(run).observe(step.seconds)
    DATA_WAIT_SECONDS.labels(run).inc(step.data_wait_seconds)
    WINDOW.labels(run).set(step.window)
