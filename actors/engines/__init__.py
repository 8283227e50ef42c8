"""Engines: what turns a prompt into tokens. One file each, one interface."""
