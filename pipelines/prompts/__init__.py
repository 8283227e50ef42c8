"""Prompt formats: items in, token ids out, one file a format."""
