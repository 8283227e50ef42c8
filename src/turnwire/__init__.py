"""turnwire: the Responses API's WebSocket mode on Ray. Its packages link to the top folders."""
