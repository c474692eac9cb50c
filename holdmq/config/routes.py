"""Routing rules of the gateway, as the configuration has them."""

from __future__ import annotations

from typing import Final

from pydantic import Field, field_validator

from holdmq.config.section import Section

ROUTES_MAX: Final = 64
"""Rules: each is tested for every topic that a worker has not seen lately."""
TREES_MAX: Final = 8
"""Log topics that rules may name: every subscription is looked for in each of them."""


class RouteSettings(Section):
    """A rule: MQTT topics that match the filter are stored in one log topic."""

    filter: str = Field(
        min_length=1, max_length=1024, description="MQTT filter of what is stored there, as sensors/#."
    )
    topic: str = Field(
        pattern=r"^mqtt-tree-[A-Za-z0-9_-]{1,100}$",
        description="Log topic; its name begins with mqtt-tree-, and its tags are whole MQTT topics.",
    )

    @field_validator("filter")
    @classmethod
    def _is_filter(cls, value: str) -> str:
        from holdmq.mqtt.filters import check_filter
        from holdmq.mqtt.reasons import MqttError

        try:
            check_filter(value)
        except MqttError as error:
            raise ValueError(str(error)) from error
        if value.startswith("$"):
            raise ValueError(f"{value!r}: topics that begin with $ cannot be published")
        return value


def routes_fault(routes: list[RouteSettings]) -> str | None:
    """Why these rules do not go together; None if they do."""
    if len(routes) > ROUTES_MAX:
        return f"gateway.routes has {len(routes)} rules; {ROUTES_MAX} are possible"
    trees = {route.topic for route in routes}
    if len(trees) > TREES_MAX:
        return f"gateway.routes names {len(trees)} topics; {TREES_MAX} are possible"
    return None
