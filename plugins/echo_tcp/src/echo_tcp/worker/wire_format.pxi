# The native numbers of the wire format. Part of _worker.pyx.

#: The native table of the wire format, for comparing it with echo_core.wire.protocol.
WIRE = {
    "header": HEADER_BYTES,
    "kinds": {
        "data": KIND_DATA, "ack": KIND_ACK, "control": KIND_CONTROL, "weights": KIND_WEIGHTS,
        "receipt": KIND_RECEIPT, "subscribe": KIND_SUBSCRIBE, "ping": KIND_PING, "bye": KIND_BYE,
    },
    "reply": flag_reply,
    "labels": flag_labels,
    "label_bytes": LABEL_BYTES,
    "ended": flag_ended,
    "last": flag_last_chunk,
    "first": flag_first_chunk,
    "data_bytes": max_data_bytes,
    "data_count": max_data_count,
    "control_bytes": max_control_bytes,
    "chunk_bytes": max_weights_chunk,
    "reason_bytes": max_bye_bytes,
}
