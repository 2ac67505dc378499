"""The stream: batch buffers that writers fill slot by slot and a learner takes whole."""
