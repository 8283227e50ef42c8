"""The Responses API's own nouns, named letter for letter as on the wire."""
