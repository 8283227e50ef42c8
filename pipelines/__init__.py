"""What happens to a turn. Pure: no Ray, no sockets, no clock, no environment."""
