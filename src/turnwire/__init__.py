"""turnwire: the Responses API's WebSocket mode on Ray. The packages are links to the top folders."""
