"""The page of metrics, from the server's registry."""

from prometheus_client.metrics import MetricWrapperBase

from coddl.core.pool.state import Pool
from coddl.server.metrics import PoolGauges, ServerMetrics
from coddl.server.progress import LatestProgress
from docs.generator.markdown import Json, page, table


def metrics_page() -> str:
    """Every metric that Prometheus finds at /metrics."""
    rows = []
    for each in vars(ServerMetrics()).values():
        if isinstance(each, MetricWrapperBase):
            [family] = each.describe() or each.collect()
            name = f"{family.name}_total" if family.type == "counter" else family.name
            rows.append([f"`{name}`", family.type, _labels(vars(each)), family.documentation])
    for gauge in PoolGauges(Pool(), LatestProgress()).collect():
        rows.append([f"`{gauge.name}`", gauge.type, _labels(vars(gauge)), gauge.documentation])
    return page(
        "# Metrics",
        "The server gives them at `/metrics` in Prometheus' text format; a scrape needs the token, "
        "as every request does ([example](../operate.md#metrics-and-alerts)).",
        table(["metric", "type", "labels", "meaning"], sorted(rows)),
    )


def _labels(about: Json) -> str:
    return ", ".join(f"`{each}`" for each in about["_labelnames"])
