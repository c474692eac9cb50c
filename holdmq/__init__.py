"""HoldMQ: MQTT for millions of devices over one commit log.

Importing this package loads nothing but the version: the SDK lives in ``holdmq.client``, the MQTT
codec in ``holdmq.mqtt``, the nouns in ``holdmq.message``.
"""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0"
