"""Both directions of OpenEnv's protocol: a client for environments that a server offers, and a server that offers ours. Nothing of openenv is imported.

Source: the server and the client of the package openenv 0.10. A session is a WebSocket at ``/ws`` that carries JSON: ``reset``, ``step``, ``state`` and
``close``. A server answers with ``observation``, ``state`` or ``error``.
"""

from echo_rl.environments.adapters.openenv.client import OpenEnvConfig, OpenEnvEnvironment
from echo_rl.environments.adapters.openenv.server import OpenEnvServer

__all__ = ["OpenEnvConfig", "OpenEnvEnvironment", "OpenEnvServer"]
