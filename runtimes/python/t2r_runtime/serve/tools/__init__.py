"""Functions that a chat model may call: requests with tools, and the formats in which models write calls."""
