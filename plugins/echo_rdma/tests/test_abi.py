"""Echo's declarations of UCX's C interface match UCX's headers. The compiler compares them, if a wheel or the system has the headers."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1] / "src" / "echo_rdma"  # headers are not part of a wheel

# ours, theirs, {our member: theirs}
STRUCTURES = [
    ("Params", "ucp_params_t", {"mask": "field_mask", "features": "features", "shared_workers": "mt_workers_shared", "name": "name"}),
    ("WorkerParams", "ucp_worker_params_t", {"mask": "field_mask", "thread_mode": "thread_mode", "cpus": "cpu_mask", "events": "events",
                                            "event_fd": "event_fd"}),
    ("SockAddr", "ucs_sock_addr_t", {"address": "addr", "length": "addrlen"}),
    ("ListenerParams", "ucp_listener_params_t", {"mask": "field_mask", "where": "sockaddr", "connection": "conn_handler"}),
    ("ListenerAttr", "ucp_listener_attr_t", {"address": "sockaddr"}),
    ("ConnRequestAttr", "ucp_conn_request_attr_t", {"client": "client_address"}),
    (
        "EndpointParams",
        "ucp_ep_params_t",
        {"mask": "field_mask", "error_mode": "err_mode", "error": "err_handler", "flags": "flags", "where": "sockaddr", "request": "conn_request"},
    ),
    ("TransportEntry", "ucp_transport_entry_t", {"transport": "transport_name", "device": "device_name"}),
    ("EndpointAttr", "ucp_ep_attr_t", {"mask": "field_mask", "transports": "transports"}),
    ("MemParams", "ucp_mem_map_params_t", {"mask": "field_mask", "address": "address", "length": "length", "flags": "flags",
                                           "memory_type": "memory_type"}),
    ("MemAttr", "ucp_mem_attr_t", {"mask": "field_mask", "address": "address", "length": "length"}),
    ("IoVec", "ucp_dt_iov_t", {"buffer": "buffer", "length": "length"}),
    ("RequestParam", "ucp_request_param_t", {"mask": "op_attr_mask", "flags": "flags", "callback": "cb", "datatype": "datatype",
                                             "user_data": "user_data", "info": "recv_info"}),
    ("MessageParam", "ucp_am_recv_param_t", {"attributes": "recv_attr", "reply": "reply_ep"}),
    ("MessageHandlerParam", "ucp_am_handler_param_t", {"mask": "field_mask", "id": "id", "flags": "flags", "callback": "cb", "arg": "arg"}),
]
VALUES = {
    "FEATURE_AM": "UCP_FEATURE_AM",
    "FEATURE_WAKEUP": "UCP_FEATURE_WAKEUP",
    "Params::FEATURES": "UCP_PARAM_FIELD_FEATURES",
    "Params::SHARED_WORKERS": "UCP_PARAM_FIELD_MT_WORKERS_SHARED",
    "Params::NAME": "UCP_PARAM_FIELD_NAME",
    "THREAD_SERIALIZED": "UCS_THREAD_MODE_SERIALIZED",
    "WorkerParams::THREAD_MODE": "UCP_WORKER_PARAM_FIELD_THREAD_MODE",
    "ListenerParams::SOCK_ADDR": "UCP_LISTENER_PARAM_FIELD_SOCK_ADDR",
    "ListenerParams::CONN_HANDLER": "UCP_LISTENER_PARAM_FIELD_CONN_HANDLER",
    "ListenerAttr::SOCKADDR": "UCP_LISTENER_ATTR_FIELD_SOCKADDR",
    "ConnRequestAttr::CLIENT_ADDR": "UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ADDR",
    "ERROR_MODE_PEER": "UCP_ERR_HANDLING_MODE_PEER",
    "EndpointParams::ERROR_MODE": "UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE",
    "EndpointParams::ERROR_HANDLER": "UCP_EP_PARAM_FIELD_ERR_HANDLER",
    "EndpointParams::SOCK_ADDR": "UCP_EP_PARAM_FIELD_SOCK_ADDR",
    "EndpointParams::FLAGS": "UCP_EP_PARAM_FIELD_FLAGS",
    "EndpointParams::CONN_REQUEST": "UCP_EP_PARAM_FIELD_CONN_REQUEST",
    "EndpointParams::CLIENT_SERVER": "UCP_EP_PARAMS_FLAGS_CLIENT_SERVER",
    "EndpointAttr::TRANSPORTS": "UCP_EP_ATTR_FIELD_TRANSPORTS",
    "MemParams::LENGTH": "UCP_MEM_MAP_PARAM_FIELD_LENGTH",
    "MemParams::FLAGS": "UCP_MEM_MAP_PARAM_FIELD_FLAGS",
    "MemParams::NONBLOCK": "UCP_MEM_MAP_NONBLOCK",
    "MemParams::ALLOCATE": "UCP_MEM_MAP_ALLOCATE",
    "MemAttr::ADDRESS": "UCP_MEM_ATTR_FIELD_ADDRESS",
    "MemAttr::LENGTH": "UCP_MEM_ATTR_FIELD_LENGTH",
    "CONTIGUOUS": "ucp_dt_make_contig(1)",
    "IOV": "ucp_dt_make_iov()",
    "RequestParam::CALLBACK": "UCP_OP_ATTR_FIELD_CALLBACK",
    "RequestParam::USER_DATA": "UCP_OP_ATTR_FIELD_USER_DATA",
    "RequestParam::DATATYPE": "UCP_OP_ATTR_FIELD_DATATYPE",
    "RequestParam::FLAGS": "UCP_OP_ATTR_FIELD_FLAGS",
    "RequestParam::FAST_COMPLETION": "UCP_OP_ATTR_FLAG_FAST_CMPL",
    "RequestParam::SEND_REPLY": "UCP_AM_SEND_FLAG_REPLY",
    "RequestParam::SEND_EAGER": "UCP_AM_SEND_FLAG_EAGER",
    "RequestParam::CLOSE_FORCE": "UCP_EP_CLOSE_FLAG_FORCE",
    "MessageParam::REPLY_EP": "UCP_AM_RECV_ATTR_FIELD_REPLY_EP",
    "MessageParam::DATA": "UCP_AM_RECV_ATTR_FLAG_DATA",
    "MessageParam::RENDEZVOUS": "UCP_AM_RECV_ATTR_FLAG_RNDV",
    "MessageHandlerParam::WHOLE": "UCP_AM_FLAG_WHOLE_MSG",
    "OK": "UCS_OK",
    "INPROGRESS": "UCS_INPROGRESS",
    "ERR_TIMED_OUT": "UCS_ERR_TIMED_OUT",
    "ERR_CONNECTION_RESET": "UCS_ERR_CONNECTION_RESET",
    "ERR_LAST": "UCS_ERR_LAST",
}


def include() -> Path:
    """The folder of UCX's headers."""
    spec = importlib.util.find_spec("libucx")
    folders = [Path(place) / "include" for place in spec.submodule_search_locations or []] if spec else []
    for folder in [*folders, Path("/usr/include")]:
        if (folder / "ucp/api/ucp.h").exists():
            return folder
    pytest.skip("no UCX headers here (ucp/api/ucp.h)")


def test_layouts_and_numbers_are_those_of_ucx(tmp_path: Path) -> None:
    compiler = os.environ.get("CXX", "g++").split()[-1]
    if shutil.which(compiler) is None:
        pytest.skip(f"no compiler {compiler}")
    lines = ["#include <ucp/api/ucp.h>", '#include "ucx/abi.hpp"', "namespace ours = echo_rdma::ucp;",
             "static_assert(sizeof(ours::status) == sizeof(ucs_status_t));"]
    for ours, theirs, members in STRUCTURES:
        lines.append(f"static_assert(sizeof(ours::{ours}) <= sizeof({theirs}) || sizeof(ours::{ours}::room));" if ours == "RequestParam" else "")
        for mine, its in members.items():
            lines.append(f'static_assert(offsetof(ours::{ours}, {mine}) == offsetof({theirs}, {its}), "{ours}.{mine}");')
            lines.append(f'static_assert(sizeof(ours::{ours}::{mine}) == sizeof((({theirs} *)0)->{its}), "{ours}.{mine}");')
    lines += [f'static_assert(uint64_t(ours::{mine}) == uint64_t({its}), "{mine}");' for mine, its in VALUES.items()]
    source = tmp_path / "abi.cpp"
    source.write_text("\n".join(lines))
    command = [compiler, "-std=c++20", "-fsyntax-only", "-Wno-invalid-offsetof", "-I", str(include()), "-I", str(ROOT), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
