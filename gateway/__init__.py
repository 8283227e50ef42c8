"""How a turn arrives: WebSocket and HTTP on one port."""
