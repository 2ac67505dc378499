"""The stream: writers fill batch buffers slot by slot, and a learner takes each batch as a whole."""
