"""What the server counts, for Prometheus, under names like those of other servers of models."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from regard.errors import require

require("prometheus_client")

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class Metrics:
    """One server's; each of a model, by its name."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        registry, model = self.registry, ["model"]
        self.queue = Gauge("regard_queue_size", "Inputs that wait.", model, registry=registry)
        self.running = Gauge("regard_running_size", "Inputs that are worked on.", model, registry=registry)
        self.batch = Gauge("regard_batch_size", "Hypotheses in the batch.", model, registry=registry)
        self.ready = Gauge("regard_ready", "Whether the model is loaded.", model, registry=registry)
        self.restarts = Gauge("regard_worker_restarts", "How often its process died.", model, registry=registry)
        self.waited = self._seconds("regard_time_in_queue_seconds", "From a request to the start of its search.")
        self.first = self._seconds("regard_time_to_first_token_seconds", "From a request to its first text.")
        self.duration = self._seconds("regard_request_duration_seconds", "From a request to its answer.")
        self.prompt = Counter("regard_prompt_tokens", "Tokens of sources.", model, registry=registry)
        self.generated = Counter("regard_generated_tokens", "Tokens of outputs.", model, registry=registry)
        self.inputs = Counter("regard_inputs", "Inputs that were answered.", model, registry=registry)
        self.requests = Counter("regard_requests", "HTTP requests, by status.", ["status"], registry=registry)
        self.refused = Counter("regard_refused", "Requests not answered, by reason.", ["reason"], registry=registry)

    def _seconds(self, name: str, what: str) -> Histogram:
        return Histogram(name, what, ["model"], buckets=SECONDS, registry=self.registry)

    def text(self) -> bytes:
        """All of them, as Prometheus reads them."""
        return generate_latest(self.registry)
