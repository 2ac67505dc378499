"""Programs whose threads and sockets gevent or eventlet has replaced: they are refused, because Echo would hang in them."""

from __future__ import annotations

import sys
from typing import Any

from .errors import EchoError

__all__ = ["check_real_threads"]

_MODULES = {"thread": ("_thread", "threading", "thread")}  # by the argument of a patch, where the module has another name
_LIBRARIES = (  # name, the module that knows, its function, the patch, its arguments that matter
    ("gevent", "gevent.monkey", "is_module_patched", "gevent.monkey.patch_all", ("thread", "socket", "select", "ssl")),
    ("eventlet", "eventlet.patcher", "is_monkey_patched", "eventlet.monkey_patch", ("thread", "socket", "select")),  # its socket includes ssl
)


def check_real_threads() -> None:
    """Raise EchoError if gevent or eventlet has replaced this process's threads, sockets, select or ssl.

    Echo's threads wait in native code. A greenlet that runs such code stops all greenlets of its thread, and no timeout ends that.
    """
    for name, module, check, patch, parts in _LIBRARIES:
        is_patched: Any = getattr(sys.modules.get(module), check, None)
        if is_patched is None:
            continue
        found = [part for part in parts if any(map(is_patched, _MODULES.get(part, (part,))))]
        if found:
            raise EchoError(
                f"{name} has replaced {' and '.join(found)} of this process, and Echo, whose threads wait in native code, would stand still for ever; "
                f"call {patch}({', '.join(f'{part}=False' for part in parts)}), or use Echo in a process of its own without that patch"
            )
